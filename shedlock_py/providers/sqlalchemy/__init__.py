"""SQL databases through SQLAlchemy Core: SQLite, PostgreSQL, MySQL and MariaDB. Needs the extra ``sqlalchemy``."""

from shedlock_py.providers.sqlalchemy.provider import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from shedlock_py.providers.sqlalchemy.schema import lock_table

__all__ = ["AsyncSqlAlchemyLockProvider", "SqlAlchemyLockProvider", "lock_table"]
