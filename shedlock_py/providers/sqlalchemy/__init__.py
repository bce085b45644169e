"""SQL databases through SQLAlchemy Core: SQLite, PostgreSQL, MySQL and MariaDB. Needs the extra ``sqlalchemy``.

- SQL text: ``claims``, ``statements``, ``clock``, ``runs``; for ``shedlock doctor``, ``checks``.
- Where the tables are, and their DDL: ``tables``, ``schema``.
- Decisions: ``programs`` (on top of ``tables``), ``errors``.
- Carrying out: ``clients``, ``connections``, ``engines``, ``watchdog``, ``confirmation``, ``sqlite_files``.
- The two classes: ``provider``.
"""

import sqlalchemy

from shedlock_py.runtime.versions import require

require("sqlalchemy", sqlalchemy.__version__)

from shedlock_py.providers.sqlalchemy.schema import lock_table, runs_table
from shedlock_py.providers.sqlalchemy.sql_provider import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider

__all__ = ["AsyncSqlAlchemyLockProvider", "SqlAlchemyLockProvider", "lock_table", "runs_table"]
