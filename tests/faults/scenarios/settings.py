"""Databases with unexpected defaults, and a pooler between the workers and PostgreSQL.

Settings belong to a separate role and database (PostgreSQL), or to the whole server for a while (MariaDB, MySQL).
Workers open a URL, so that the library makes the connections, or an engine with all defaults, as an application has it.
If a setting must have no effect, every error is a finding. If errors are due (a statement waits for longer than it
may), the other rules must hold, and the workers go on afterwards.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast
from uuid import uuid4

from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from tests.faults.checker import Finding, Report, check
from tests.faults.fleet import Fleet
from tests.faults.history import History
from tests.faults.registry import Budget, scenario
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support.availability import private_server
from tests.support.database import DatabaseServer
from tests.support.pgbouncer import PgBouncer
from tests.support.stores import SqlServerStore, Store, on_private_server

BEHAVIOUR = Behaviour(at_most=0.8, work=(0.0, 0.05), pause=(0.0, 0.02), extends=0.5, keeps_alive=0.2)
SLOW = replace(BEHAVIOUR, pause=(0.0, 0.3))
"""Connections are idle for longer than a server may allow."""
BUSY = replace(BEHAVIOUR, work=(0.0, 0.002), pause=(0.0, 0.001), keeps_alive=0.0)
"""As many concurrent statements as possible, for isolation levels."""
GRANTS_PER_TRIAL = 8
PASSWORD = "s3cret-pw"
CONFLICTS = "conflict error"
MOST_CONFLICTS = 0.01
"""Of all operations."""
_CONFLICT = re.compile("could not serialize access|deadlock|Record has changed since last read", re.IGNORECASE)


@dataclass(frozen=True)
class Setting:
    name: str
    values: Mapping[str, str]
    """By variable; for ``default_transaction_isolation`` and similar variables."""
    may_fail: bool = False
    """Errors are due."""
    connections: int = -1
    """How many connections the workers may have together; -1: no limit."""
    behaviour: Behaviour = BEHAVIOUR
    disturb: Callable[[Fleet, SqlServerStore], None] | None = None
    """A further fault, while the workers run."""


def lock_the_records(fleet: Fleet, store: SqlServerStore) -> None:
    """Lock the rows in a separate transaction until operations of the workers have failed."""
    table = store.options["table_name"]
    with store.server.connect(make_url(store.where(())).database) as connection:
        connection.exec_driver_sql("BEGIN")
        # Wait for no lock: a worker's own lock is gone in a moment.
        connection.exec_driver_sql(f"SELECT * FROM {table} FOR UPDATE")
        before = errors(fleet)
        fleet.wait(lambda: errors(fleet) >= before + 2, "errors of workers that wait for a row")
        connection.exec_driver_sql("ROLLBACK")


def errors(fleet: Fleet) -> int:
    return sum(fleet.count(kind, "error") for kind in ("acquire", "extend", "release"))


POSTGRES = (
    Setting("serializable",
            {"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on"}, behaviour=BUSY),
    Setting("repeatable read",
            {"default_transaction_isolation": "repeatable read", "synchronous_commit": "off"}, behaviour=BUSY),
    Setting("formats",
            {"datestyle": "German, DMY", "intervalstyle": "sql_standard", "timezone": "America/St_Johns",
             "extra_float_digits": "-15", "bytea_output": "escape", "standard_conforming_strings": "off",
             "escape_string_warning": "off", "lc_messages": "C", "array_nulls": "off", "transform_null_equals": "on"}),
    # If the server ends a session in the middle of a statement, that is an error. A session that ended before is not
    # noticed.
    Setting("idle sessions ended", {"idle_session_timeout": "100ms"}, may_fail=True, behaviour=SLOW),
    Setting("time limits",
            {"statement_timeout": "200ms", "lock_timeout": "50ms", "idle_in_transaction_session_timeout": "20ms"},
            may_fail=True, disturb=lock_the_records),
    Setting("few connections", {}, may_fail=True, connections=2),
)  # fmt: skip
MARIADB = (
    Setting("serializable", {"tx_isolation": "SERIALIZABLE"}, behaviour=BUSY),
    Setting("read uncommitted", {"tx_isolation": "READ-UNCOMMITTED"}),
    Setting("no sql_mode", {"sql_mode": "", "tx_isolation": "REPEATABLE-READ"}),
    Setting("ANSI_QUOTES", {"sql_mode": "ANSI_QUOTES,ANSI,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES"}),
    Setting("TRADITIONAL", {"sql_mode": "TRADITIONAL,ONLY_FULL_GROUP_BY,NO_ZERO_DATE"}),
    Setting("no autocommit", {"autocommit": "0", "completion_type": "CHAIN", "sql_auto_is_null": "1"}),
    Setting("formats", {"time_zone": "-09:30", "div_precision_increment": "0"}),
    Setting("idle sessions ended", {"wait_timeout": "1"}, behaviour=replace(SLOW, pause=(0.0, 1.5))),
    Setting(
        "time limits",
        {"innodb_lock_wait_timeout": "1", "lock_wait_timeout": "1", "max_statement_time": "0.2"},
        may_fail=True,
        disturb=lock_the_records,
    ),
    Setting("few connections", {}, may_fail=True, connections=2),
)
MYSQL = (
    Setting("serializable", {"transaction_isolation": "SERIALIZABLE"}, behaviour=BUSY),
    Setting("read uncommitted", {"transaction_isolation": "READ-UNCOMMITTED"}),
    *(setting for setting in MARIADB if setting.name in ("ANSI_QUOTES", "TRADITIONAL", "no autocommit", "formats")),
    Setting("no sql_mode", {"sql_mode": "", "transaction_isolation": "REPEATABLE-READ"}),
    Setting("log of statements", {"binlog_format": "STATEMENT"}),
    *(setting for setting in MARIADB if setting.name in ("idle sessions ended", "few connections")),
    Setting(
        "time limits",
        {"innodb_lock_wait_timeout": "1", "lock_wait_timeout": "1", "max_execution_time": "200"},
        may_fail=True,
        disturb=lock_the_records,
    ),
)
SETTINGS = {"postgres": POSTGRES, "mariadb": MARIADB, "mysql": MYSQL}


@scenario(8, "hostile defaults", stores=tuple(SETTINGS), weight=1.5, least=2 * len(MARIADB))
def hostile_defaults(store: Store, budget: Budget, seed: int) -> Report:
    """Apply each setting in turn, by URL and by engine."""
    settings = SETTINGS[store.name]
    with on_private_server(store) as own:
        report = budget.total(
            lambda trial: one_setting(own, settings[trial // 2 % len(settings)], seed + trial, by_engine=trial % 2 == 1)
        )
    if report.counts[CONFLICTS]:
        report.notes.append(f"{report.counts[CONFLICTS]} attempts failed for being undone again and again")
    return report


def one_setting(store: Store, setting: Setting, seed: int, *, by_engine: bool) -> Report:
    """Run on a private server: such settings of MariaDB and MySQL apply to every session."""
    server = cast(SqlServerStore, store).server
    make = postgres_role if store.name == "postgres" else partial(mysql_user, name=store.name)
    drivers = random.Random(seed).choice(_DRIVERS[store.name])
    with make(server, setting, drivers) as hostile:
        hostile.like(store)
        # If there are few connections, the pools of four processes want more of them.
        size = 4 if setting.connections >= 0 or setting.behaviour is BUSY else 3
        provider = ENGINE if by_engine else None
        with Fleet(hostile, size=size, names=2, behaviour=setting.behaviour, seed=seed, provider=provider) as fleet:
            fleet.wait_for_each_name()
            if setting.disturb is not None:
                setting.disturb(fleet, hostile)
            fleet.wait_for_grants(GRANTS_PER_TRIAL * (8 if setting.behaviour is BUSY else 1))
            if setting.connections >= 0:
                fleet.wait(lambda: errors(fleet), "an error for want of a connection")
            history = fleet.end()
    report = check(history, rules_of(store))
    if not setting.may_fail:
        judge_errors(report, history, f"{setting.name}, {drivers[store.is_async]}")
    return report


def judge_errors(report: Report, history: History, where: str) -> None:
    """Allow no errors, except a few conflicts that the database undid again and again in favour of others.

    A statement is retried five times. On two busy cores, a slow process may lose every conflict.
    """
    failed = [operation for operation in history.operations if operation.outcome == "error"]
    conflicts = [operation for operation in failed if _CONFLICT.search(operation.error)]
    report.counts[CONFLICTS] += len(conflicts)
    asked = len(history.of("acquire", "extend", "release"))
    if len(conflicts) > MOST_CONFLICTS * asked:
        text = f"{where}: {len(conflicts)} of {asked} operations failed, such as: {conflicts[0].error}"
        report.findings.append(Finding("error", conflicts[0].name, text, conflicts[0].started))
    report.findings += [
        Finding("error", o.name, f"{where}: {o.kind}: {o.error}", o.started) for o in failed if o not in conflicts
    ]


@scenario(8, "transaction pooling", stores=("postgres",), least=4)
def transaction_pooling(store: Store, budget: Budget, seed: int) -> Report:
    """PgBouncer with two sessions for all workers, and the drivers that docs/providers/postgresql.md recommends."""

    def trial(own: Store, pooler: PgBouncer, number: int) -> Report:
        driver = ("postgresql+psycopg", "postgresql+psycopg2")[number % 2 if not store.is_async else 0]
        history, report = through_pooler(own, pooler, driver, seed + number, by_engine=number // 2 % 2 == 1)
        judge_errors(report, history, driver)
        return report

    with on_private_server(store) as own, pooler_before(own) as pooler:
        return budget.total(partial(trial, own, pooler))


@scenario(8, "transaction pooling, asyncpg", stores=("postgres",), kinds=("async",), least=2)
def asyncpg_pooling(store: Store, budget: Budget, seed: int) -> Report:
    """asyncpg prepares statements, which are then in another session: errors, but two leases never overlap."""
    with on_private_server(store) as own, pooler_before(own) as pooler:
        report = budget.total(
            lambda trial: through_pooler(own, pooler, "postgresql+asyncpg", seed + trial, by_engine=trial % 2 == 1)[1]
        )
    report.notes.append(f"{report.counts['acquire error']} attempts failed, {report.counts['acquire granted']} did not")
    return report


def pooler_before(store: Store) -> AbstractContextManager[PgBouncer]:
    return private_server("pgbouncer", lambda: PgBouncer(cast(SqlServerStore, store).server))


def through_pooler(
    store: Store, pooler: PgBouncer, driver: str, seed: int, *, by_engine: bool
) -> tuple[History, Report]:
    server = cast(SqlServerStore, store).server
    # The table is made without the pooler.
    pooled = RedirectedStore(server, "postgres", ("postgresql+psycopg",) * 2)
    pooled.redirect = lambda url: make_url(pooler.url(driver))
    provider = ENGINE if by_engine else None
    with Fleet(pooled.like(store), names=2, behaviour=BEHAVIOUR, seed=seed, provider=provider) as fleet:
        if driver.endswith("asyncpg"):
            fleet.wait_for_count("acquire", "error", 20)
        else:
            fleet.wait_for_grants(3 * GRANTS_PER_TRIAL)
        history = fleet.end()
    return history, check(history, rules_of(store))


# Stores


class RedirectedStore(SqlServerStore):
    """A store with a different URL than its server's own."""

    redirect: Callable[[URL], URL] | None = None

    def where(self, via: Any = (), *, is_async: bool | None = None) -> str:
        url = super().where(via, is_async=is_async)
        return self.redirect(make_url(url)).render_as_string(hide_password=False) if self.redirect else url


ENGINE = f"{__name__}:open_with_engine"
_DRIVERS = {
    "postgres": (
        ("postgresql+psycopg", "postgresql+asyncpg"),
        ("postgresql+psycopg2", "postgresql+psycopg"),
    ),
    "mariadb": (("mysql+pymysql", "mysql+asyncmy"), ("mysql+mysqldb", "mysql+aiomysql")),
    "mysql": (("mysql+pymysql", "mysql+asyncmy"), ("mysql+mysqldb", "mysql+aiomysql")),
}


def _as_user(server: DatabaseServer, name: str, drivers: tuple[str, str], user: str, **more: str) -> RedirectedStore:
    class AsUser(RedirectedStore):
        redirect = staticmethod(lambda url: url.set(username=user, password=PASSWORD, **more))

    return AsUser(server, name, drivers)


@contextmanager
def postgres_role(server: DatabaseServer, setting: Setting, drivers: tuple[str, str]) -> Iterator[RedirectedStore]:
    name = f"hostile_{uuid4().hex[:8]}"
    server.create_database(name)
    try:
        with server.connect() as connection:
            connection.exec_driver_sql(
                f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}' CONNECTION LIMIT {setting.connections}"
            )
            connection.exec_driver_sql(f"ALTER DATABASE {name} OWNER TO {name}")
        hostile = _as_user(server, "postgres", drivers, name, database=name)
        with server.connect() as connection:
            for variable, value in setting.values.items():
                value = value if "," in value else f"'{value}'"
                connection.exec_driver_sql(f"ALTER ROLE {name} IN DATABASE {name} SET {variable} = {value}")
        yield hostile
    finally:
        server.drop_database(name)
        with server.connect() as connection:
            connection.exec_driver_sql(f"DROP ROLE IF EXISTS {name}")


@contextmanager
def mysql_user(
    server: DatabaseServer, setting: Setting, drivers: tuple[str, str], *, name: str
) -> Iterator[RedirectedStore]:
    """``name``: of the store, MariaDB or MySQL."""
    user = f"hostile_{uuid4().hex[:8]}"
    most = max(0, setting.connections)
    with server.connect() as connection:
        connection.exec_driver_sql(
            f"CREATE USER '{user}'@'%%' IDENTIFIED BY '{PASSWORD}' WITH MAX_USER_CONNECTIONS {most}"
        )
        connection.exec_driver_sql(
            f"GRANT ALL PRIVILEGES ON {make_url(server.url('mysql')).database}.* TO '{user}'@'%%'"
        )
        before = {
            variable: connection.exec_driver_sql(f"SELECT @@GLOBAL.{variable}").scalar_one()
            for variable in setting.values
        }
    try:
        hostile = _as_user(server, name, drivers, user)
        _set_globals(server, setting.values)
        yield hostile
    finally:
        _set_globals(server, before)
        with server.connect() as connection:
            connection.exec_driver_sql(f"DROP USER '{user}'@'%%'")


def _set_globals(server: DatabaseServer, values: Mapping[str, Any]) -> None:
    with server.connect() as connection:
        for variable, value in values.items():
            is_number = str(value).replace(".", "").isdecimal()
            connection.exec_driver_sql(f"SET GLOBAL {variable} = {value if is_number else repr(str(value))}")


def open_with_engine(provider_class: str, is_async: bool, where: str, options: dict[str, Any]) -> Any:
    """In a worker: open with an application's engine, with only the options that a pooler needs."""
    url = make_url(where)
    pooled = str(url.database).startswith("pooled_") and url.get_driver_name() == "psycopg"
    arguments: dict[str, Any] = {"prepare_threshold": None} if pooled else {}
    if is_async:
        return AsyncSqlAlchemyLockProvider(
            create_async_engine(url, pool_size=2, max_overflow=0, connect_args=arguments), **options
        )
    return SqlAlchemyLockProvider(create_engine(url, pool_size=2, max_overflow=0, connect_args=arguments), **options)
