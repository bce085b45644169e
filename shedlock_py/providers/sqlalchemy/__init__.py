"""SQL databases through SQLAlchemy Core: SQLite, PostgreSQL, MySQL and MariaDB. Needs the extra ``sqlalchemy``.

- SQL text: ``claims``, ``statements``, ``clock``, ``runs``; for ``shedlock doctor``, ``checks``.
- Tables and DDL: ``tables``, ``schema``.
- Decisions: ``sql_programs`` (on top of ``tables``), ``errors``.
- Execution: ``sql_clients``, ``connections``, ``engines``, ``watchdog``, ``confirmation``, ``sqlite_files``.
- The two providers: ``sql_provider``.
"""

import sqlalchemy

from shedlock_py.runtime.versions import require

require("sqlalchemy", sqlalchemy.__version__)

from shedlock_py.providers.sqlalchemy.schema import lock_table, runs_table
from shedlock_py.providers.sqlalchemy.sql_provider import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider

__all__ = ["AsyncSqlAlchemyLockProvider", "SqlAlchemyLockProvider", "lock_table", "runs_table"]
