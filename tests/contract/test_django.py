"""The contract on databases from Django's settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import make_url

from shedlock_py.testing.contract import (
    ExclusionContract,
    ForkContract,
    HistoryContract,
    LockProviderContract,
    PauseContract,
    ProcessContract,
)
from shedlock_py.testing.contract.threads import ThreadsContract
from shedlock_py.testing.proxy import Address
from tests.contract.mysql_drivers import MySqlOrMariaDb
from tests.contract.parts import SAME_STATEMENTS, OnStore, without
from tests.contract.sql import SqlStore
from tests.contract.test_postgresql import PostgresContract
from tests.contract.test_sqlite import SqliteContract
from tests.support.django_projects import open_provider


class DjangoStore(SqlStore):
    """The database is an entry of ``DATABASES``."""

    def __init__(self, url: str, admin_url: str) -> None:
        super().__init__(url, admin_url, users_engine=False, extra_columns=True)
        self.kind = open_provider

    def maker(self, via: Address | None) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
        place, options = make_url(self.place), self.options
        if via is not None:
            place, options = place.set(host=via[0], port=via[1]), {**options, "timeout": "20s"}
        return partial(open_provider, place.render_as_string(hide_password=False), **options), None

    @property
    def factory(self) -> Callable[[], Any]:
        return self.maker(None)[0]


class OnSqlite(SqliteContract):
    driver = "sqlite"

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> SqlStore:
        return DjangoStore(*cls.urls(request))


class TestSqlite(OnSqlite, ExclusionContract, ThreadsContract, ForkContract): ...


@pytest.mark.matrix(SAME_STATEMENTS)
@without(TestSqlite)
class TestAllOnSqlite(OnSqlite, LockProviderContract): ...


class OnPostgres(PostgresContract):
    driver = "postgresql+psycopg"

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> SqlStore:
        return DjangoStore(*cls.urls(request))


class TestPostgres(OnPostgres, OnStore): ...


@pytest.mark.slow("SQLAlchemy runs the same statements, on an engine that Django's settings describe")
@without(TestPostgres)
class TestAllOnPostgres(OnPostgres, LockProviderContract, HistoryContract, ProcessContract, PauseContract): ...


class OnMySqlOrMariaDb(MySqlOrMariaDb, LockProviderContract, HistoryContract, ProcessContract, PauseContract):
    driver = "mysql+mysqldb"

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> SqlStore:
        return DjangoStore(*cls.urls(request))


@pytest.mark.matrix("PostgreSQL shows what Django changes, test_mysql.py what MySQL does")
class TestMysql(OnMySqlOrMariaDb):
    server = "mysql_server"


@pytest.mark.matrix("PostgreSQL shows what Django changes, test_mariadb.py what MariaDB does")
class TestMariadb(OnMySqlOrMariaDb):
    server = "mariadb_server"
