"""Run history: its cost, the writes of a skip, and a table of runs that cannot be written."""

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import make_url, text

from shedlock_py import ConfigurationError, LockProvider, LockRequest, ProviderError
from shedlock_py.providers.kit import ProgramProvider
from shedlock_py.providers.sqlalchemy.statements import SqlCommand
from tests.stores.sql.stores import ONE_ASYNC_EACH, ONE_EACH, SQLITE_DRIVERS, Store, carry_out, on, programs_on
from tests.stores.sql.test_round_trips import costs
from tests.support.locks import acquired, outcomes, record_of
from tests.support.logs import warnings_of
from tests.support.polling import wait_until

ONE = (*ONE_EACH, *ONE_ASYNC_EACH)


@pytest.fixture
def table(store: Store) -> Iterator[str]:
    with store.table() as table:
        yield table
        store.execute(f"DROP TABLE IF EXISTS {table}_runs")


def add_triggers(store: Store, table: str, body: str) -> None:
    """Make each insert, update and delete run ``body`` first."""
    if store.is_postgres:
        store.execute(
            f"CREATE FUNCTION {table}_f() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {body}; RETURN coalesce(NEW, OLD); END $$"
        )
        body = f"EXECUTE FUNCTION {table}_f()"
    else:
        body = f"BEGIN {body}; END"
    for event in ("INSERT", "UPDATE", "DELETE"):
        store.execute(f"CREATE TRIGGER {table}_{event} BEFORE {event} ON {table} FOR EACH ROW {body}")


def full_of(store: Store) -> str:
    """SQL that raises the server's error for a full disk."""
    if store.is_sqlite:
        return "SELECT RAISE(ABORT, 'database or disk is full')"
    if store.is_postgres:
        return "RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'"
    return "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'"


@programs_on(ONE, mariadb=True)
def test_history_costs_one_round_trip_for_a_grant_and_one_for_a_release(
    driver: str, store: Store, table: str, proxy: Any, name: str
) -> None:
    provider: Any = store.provider(proxy.address, table_name=table, history=3)
    provider.create_schema()
    assert costs(provider, proxy, name) == {"acquire": {2}, "skip": {1}, "extend": {1}, "release": {2}}


@pytest.mark.parametrize("fault", ["missing", "a column is missing", "read-only", "full"])
@programs_on([*ONE, *SQLITE_DRIVERS])
def test_i8_jobs_run_where_history_cannot_be_written(
    driver: str, fault: str, store: Store, table: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider: Any = store.provider(table_name=table, history=3)
    provider.create_schema()
    broken = acquired(provider, name)
    runs = f"{table}_runs"
    match fault:
        case "missing":
            store.execute(f"DROP TABLE {runs}")
        case "a column is missing":
            store.execute(f"ALTER TABLE {runs} RENAME COLUMN ended TO e")
        case "read-only":
            store.execute(
                f"ALTER TABLE {runs} RENAME TO {runs}_x", f"CREATE VIEW {runs} AS SELECT DISTINCT * FROM {runs}_x"
            )
        case "full":
            add_triggers(store, runs, full_of(store))
    with caplog.at_level(logging.WARNING, "shedlock_py"):
        assert provider.release(broken)
        for each in (name, f"{name}-2"):
            lease = acquired(provider, each)
            assert provider.acquire(LockRequest(each, "1m")) is None
            assert provider.extend(lease, "2m") is lease
            assert provider.release(lease)
            assert provider.undo(acquired(provider, each))
        assert provider.prune(0) == 2
    [warning] = warnings_of(caplog)
    assert "the run history is not written, locks are not affected: release of lock" in warning
    if fault == "missing":
        assert re.search(
            rf"create the table \S*{runs} once, with .* or add runs_table\(metadata\) to your migrations", warning
        )
    elif fault == "a column is missing":
        assert re.search(rf"drop the table \S*{runs}", warning)
    if fault == "read-only":
        store.execute(f"DROP VIEW {runs}", f"ALTER TABLE {runs}_x RENAME TO {runs}")


@programs_on([*ONE, *SQLITE_DRIVERS])
def test_i8_a_claim_is_granted_where_history_cannot_be_written(
    driver: str, store: Store, table: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After ``create_schema()`` the history is written again, at once."""
    store.provider(table_name=table).create_schema()
    provider: Any = store.provider(table_name=table, history=3)
    with caplog.at_level(logging.WARNING, "shedlock_py"):
        first = acquired(provider, name, fire_time=datetime.now(UTC))
        assert provider.release(first)
        assert provider.take_over(LockRequest(name, "1m"))
    assert len(warnings_of(caplog)) == 1
    with pytest.raises(ProviderError, match=f"create the table .*{table}_runs"):
        provider.runs(name)
    provider.create_schema()
    assert provider.force_release(name)
    assert provider.release(acquired(provider, name))
    assert outcomes(provider, name) == ["ok"]


@programs_on(ONE)
def test_i8_a_user_who_may_use_the_lock_table_only_gets_locks(
    driver: str, store: Store, table: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The user cannot create a table either: ``create_schema()`` names the users who can."""
    store.provider(table_name=table).create_schema()
    user, grants = ("jobs", "jobs") if store.is_postgres else ("jobs", "jobs@'%'")
    make = "CREATE ROLE jobs LOGIN PASSWORD 'pw'" if store.is_postgres else f"CREATE USER {grants} IDENTIFIED BY 'pw'"
    store.execute(make, f"GRANT SELECT, INSERT, UPDATE ON {table} TO {grants}")
    if store.is_postgres:
        store.execute("REVOKE CREATE ON SCHEMA public FROM public")
    url = make_url(store.url()).set(username=user, password="pw").render_as_string(hide_password=False)
    try:
        provider: Any = store.provider(url=url, table_name=table, history=3)
        with pytest.raises(
            ProviderError, match=rf"(?i)denied.* — let a privileged user create \S*{table}_runs, or grant"
        ):
            provider.create_schema()
        for is_there in (False, True):
            if is_there:
                store.provider(table_name=table, history=3).create_schema()
                provider = store.provider(url=url, table_name=table, history=3)
            caplog.clear()
            with caplog.at_level(logging.WARNING, "shedlock_py"):
                for _ in range(2):
                    assert provider.release(acquired(provider, name))
            [warning] = warnings_of(caplog)
            assert "locks are not affected: acquire of lock" in warning
            assert re.search("(?i)denied" if is_there else "create the table|denied", warning)
    finally:
        if store.is_postgres:
            store.execute("DROP OWNED BY jobs")
        store.execute(f"DROP {'ROLE' if store.is_postgres else 'USER'} {grants}")


@pytest.mark.slow("waits for a slow table")
@programs_on(ONE)
def test_i8_a_slow_table_is_waited_for_once(
    driver: str, store: Store, table: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A job waits a second for the table, then not again for a minute."""
    provider: Any = store.provider(table_name=table, history=3, timeout="4s")
    provider.create_schema()
    add_triggers(store, f"{table}_runs", "PERFORM pg_sleep(1.5)" if store.is_postgres else "DO SLEEP(1.5)")
    with caplog.at_level(logging.WARNING, "shedlock_py"):
        started = time.monotonic()
        lease = acquired(provider, name)
        assert time.monotonic() - started >= 1
        assert provider.acquire(LockRequest(name, "1m")) is None
        assert provider.release(lease)
        for number in range(3):
            assert provider.release(acquired(provider, f"{name}-{number}"))
        assert provider.runs(f"{name}-2") == [], "it has waited again"
    [warning] = warnings_of(caplog)
    assert "locks are not affected: acquire of lock" in warning


@programs_on([*ONE, "postgresql+psycopg2"], mariadb=True)
def test_i8_rows_that_somebody_has_locked_are_waited_for_once(
    driver: str, store: Store, table: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator's open transaction deletes or corrects runs."""
    provider: Any = store.provider(table_name=table, history=2, timeout="60s")
    provider.create_schema()
    for _ in range(3):
        assert provider.release(acquired(provider, name))
    lease, undone = acquired(provider, name), acquired(provider, f"{name}-2")
    with store.connect() as connection, connection.execution_options(isolation_level="READ COMMITTED").begin():
        connection.execute(text(f"SELECT * FROM {table}_runs FOR UPDATE"))
        with caplog.at_level(logging.WARNING, "shedlock_py"):
            started = time.monotonic()
            assert provider.release(lease)
            assert provider.undo(undone)
            assert provider.release(acquired(provider, name))
            assert time.monotonic() - started < 30, "it has waited for the time limit"
    assert len(warnings_of(caplog)) == 1


@contextmanager
def locked(store: Store, table: str) -> Iterator[None]:
    """Block writes of runs. At the end, wait until the server has carried out the blocked statements."""
    others = f"information_schema.processlist WHERE info LIKE '%{table}_runs%' AND id <> CONNECTION_ID()"
    if store.is_postgres:
        others = f"pg_stat_activity WHERE state = 'active' AND query LIKE '%{table}_runs%' AND pid <> pg_backend_pid()"
    waiting = f"SELECT count(*) FROM {others}"
    with store.connect() as connection, connection.execution_options(isolation_level="READ COMMITTED").begin():
        connection.execute(text(f"LOCK TABLE {table}_runs" if store.is_postgres else f"LOCK TABLES {table}_runs WRITE"))
        yield
        assert store.query(waiting) == 1, "the server still waits"
        if not store.is_postgres:
            connection.execute(text("UNLOCK TABLES"))
    wait_until(lambda: store.query(waiting) == 0, what="the server has carried it out")


# MySQL and PostgreSQL carry out a statement after its client has gone. MariaDB does so sometimes.


@programs_on(["postgresql+psycopg", "postgresql+psycopg2", "postgresql+asyncpg", "mysql+asyncmy", "mysql+pymysql"])
def test_i8_a_table_that_somebody_has_locked_is_waited_for_once(
    driver: str, store: Store, table: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider: Any = store.provider(table_name=table, history=3)
    provider.create_schema()
    before = acquired(provider, f"{name}-2", lock_at_least_for="50s")
    with locked(store, table), caplog.at_level(logging.WARNING, "shedlock_py"):
        assert provider.release(before)
        released = record_of(provider, before.name)
        assert provider.release(acquired(provider, name))
    [warning] = warnings_of(caplog)
    assert "locks are not affected: release of lock" in warning
    assert record_of(provider, before.name).lock_until == released.lock_until
    [run] = provider.runs(before.name)
    assert run.outcome == "ok"
    assert run.ended < released.read_at, "it ended when the job did, not when the table was unlocked"


@programs_on(["postgresql+psycopg", "mysql+pymysql"])
def test_i12_a_run_that_waited_for_a_locked_table_does_not_begin_after_the_undo(
    driver: str, store: Store, table: str, name: str
) -> None:
    provider: Any = store.provider(table_name=table, history=3)
    provider.create_schema()
    with locked(store, table):
        assert provider.undo(acquired(provider, name))
    assert provider.runs(name) == []


@programs_on([*ONE_EACH, "sqlite"])
def test_runs_on_a_table_of_shedlock_for_java_have_tokens(driver: str, store: Store, table: str, name: str) -> None:
    store.provider(table_name=table).create_schema()
    store.execute(*(f"ALTER TABLE {table} DROP COLUMN {each}" for each in ("fencing_token", "last_fire_time")))
    provider: Any = store.provider(table_name=table, history=2, extra_columns=False)
    provider.create_schema()
    for _ in range(4):
        lease = acquired(provider, name)
        assert lease.fencing_token is None
        assert provider.runs(name)[0].started == record_of(provider, name).locked_at
        assert provider.release(lease)
    assert [run.locked_by == lease.locked_by for run in provider.runs(name)] == [True, False]
    assert outcomes(provider, name) == ["ok", "ok"]
    assert store.query(f"SELECT count(*) FROM {table}_runs") == 2


@programs_on([*ONE_EACH, "sqlite"])
def test_a_run_with_an_odd_value_is_an_error_of_that_name(driver: str, store: Store, table: str, name: str) -> None:
    provider: Any = store.provider(table_name=table, history=3)
    provider.create_schema()
    for each in (name, f"{name}-2"):
        assert provider.release(acquired(provider, each))
    store.execute(f"UPDATE {table}_runs SET outcome = 'odd' WHERE name = :name", name=name)
    with pytest.raises(ProviderError, match=rf"{table}_runs has a value that it cannot have — correct the row"):
        provider.runs(name)
    assert len(provider.runs(f"{name}-2")) == 1
    assert provider.release(acquired(provider, name))


@programs_on([*ONE_EACH, "sqlite"])
def test_prune_deletes_what_records_deleted_by_hand_have_left(driver: str, store: Store, table: str, name: str) -> None:
    provider: Any = store.provider(table_name=table, history=3)
    provider.create_schema()
    assert provider.release(acquired(provider, name))
    held = acquired(provider, f"{name}-held")
    store.execute(f"DELETE FROM {table} WHERE name = :name", name=name)
    assert len(provider.runs(name)) == 1
    assert provider.prune(0) == 0
    assert provider.runs(name) == []
    assert [run.locked_by for run in provider.runs(held.name)] == [held.locked_by]


@programs_on(["mariadb+pymysql", "mysql+pymysql"], mariadb=True)
def test_a_limit_on_the_rows_of_a_select_leaves_nothing_out(driver: str, store: Store, table: str, name: str) -> None:
    limited = make_url(store.url()).update_query_dict({"init_command": "SET sql_select_limit = 1"})
    provider: Any = store.provider(url=limited.render_as_string(False), table_name=table, history=3)
    provider.create_schema()
    names = [f"{name}-1", f"{name}-2"]
    for each in names * 2:
        assert provider.release(acquired(provider, each))
    assert [record.name for record in provider.records()] == names
    assert [len(runs) for runs in provider.recent_runs(names).values()] == [2, 2]


@on(["mariadb+pymysql", "mysql+pymysql", "mysql+asyncmy"])
def test_safe_updates_do_not_keep_prune_from_its_work(driver: str, store: Store, table: str, name: str) -> None:
    safe = make_url(store.url()).update_query_dict({"init_command": "SET sql_safe_updates = 1"})
    provider: Any = store.provider(url=safe.render_as_string(False), table_name=table, history=3)
    provider.create_schema()
    assert provider.release(acquired(provider, name))
    assert provider.prune(0) == 1
    assert provider.runs(name) == []


@programs_on(["mariadb+pymysql", "mysql+pymysql"], mariadb=True)
def test_i13_prune_with_many_runs_ends_in_time(
    driver: str, store: Store, table: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """MariaDB must not compare each run with each record: that exceeds the time limit."""
    provider: Any = store.provider(table_name=table, history=20)
    provider.create_schema()
    numbers = "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 300)"
    held = "UTC_TIMESTAMP(6) + INTERVAL 1 DAY, UTC_TIMESTAMP(6), 'x', 1"
    run = "UTC_TIMESTAMP(6), 'x'"
    store.execute(
        f"INSERT INTO {table} (name, lock_until, locked_at, locked_by, fencing_token) {numbers} "
        f"SELECT CONCAT(a.n, '-', b.n), {held} FROM numbers AS a, numbers AS b WHERE b.n <= 17",
        f"INSERT INTO {table}_runs (name, fencing_token, started, locked_by) {numbers} "
        f"SELECT CONCAT(a.n, '-', b.n % 17 + 1), b.n, {run} FROM numbers AS a, numbers AS b WHERE b.n <= 200",
        f"DELETE FROM {table} WHERE name = '1-1'",
    )
    assert provider.runs("1-1")
    with caplog.at_level(logging.WARNING, "shedlock_py"):
        assert provider.prune(0) == 0
    assert warnings_of(caplog) == []
    assert provider.runs("1-1") == []
    assert len(provider.runs("1-2")) == 12


@programs_on(["postgresql+psycopg"])
def test_a_lock_table_whose_name_leaves_no_room_for_runs_is_refused(driver: str, store: Store) -> None:
    """PostgreSQL would cut the name of the table of runs to the lock table's name."""
    with pytest.raises(ConfigurationError, match="58 bytes at most"):
        store.provider(table_name="t" * 59, history=3)
    store.provider(table_name="t" * 59)


@programs_on([*ONE, *SQLITE_DRIVERS])
def test_create_schema_makes_the_table_only_with_history(driver: str, store: Store, table: str) -> None:
    provider: Any = store.provider(table_name=table)
    provider.create_schema()
    with pytest.raises(Exception, match=f"{table}_runs"):
        store.query(f"SELECT 1 FROM {table}_runs")
    keeper: Any = store.provider(table_name=table, history=3)
    keeper.create_schema()
    keeper.create_schema()
    assert store.query(f"SELECT count(*) FROM {table}_runs") == 0


@programs_on(ONE, mariadb=True)
def test_i12_a_lost_reply_changes_no_run(driver: str, store: Store, table: str, proxy: Any, name: str) -> None:
    """The lost reply may belong to the claim, the release, or a statement after them."""
    provider: Any = store.provider(proxy.address, table_name=table, history=3)
    provider.create_schema()
    for lost in range(2):
        proxy.drop_next_reply(skip=lost)
        lease = acquired(provider, f"{name}-{lost}")
        [run] = provider.runs(lease.name)
        assert (run.locked_by, run.started) == (lease.locked_by, record_of(provider, lease.name).locked_at)
        proxy.drop_next_reply(skip=lost)
        assert provider.release(lease)
        [run] = provider.runs(lease.name)
        assert (run.locked_by, run.outcome) == (lease.locked_by, "ok")
        assert proxy.replies_dropped == 2 * (lost + 1)


class Interrupted:
    """Carry commands out for ``provider``; SIGTERM arrives before or after one of them has reached the store."""

    def __init__(self, provider: LockProvider, at: int, *, is_done: bool) -> None:
        self.provider, self.at, self.is_done = provider, at, is_done

    def execute(self, command: SqlCommand, timeout: float | None) -> Any:
        self.at -= 1
        if self.at != 0 or self.is_done:
            reply = carry_out(self.provider, command)
        if self.at == 0:
            raise SystemExit
        return reply


@pytest.mark.parametrize(
    "is_done", [False, pytest.param(True, marks=pytest.mark.slow("either side of a command"))], ids=["before", "after"]
)
@pytest.mark.parametrize("at", [1, 2])
@programs_on(["postgresql+psycopg", "mysql+pymysql", "sqlite"])
def test_i8_a_release_that_is_interrupted_ends_its_run(
    driver: str, at: int, is_done: bool, store: Store, table: str, name: str
) -> None:
    provider: Any = store.provider(table_name=table, history=3)
    provider.create_schema()
    lease = acquired(provider, name)
    lease.outcome = "failed"
    interrupted = ProgramProvider(provider.programs, Interrupted(provider, at, is_done=is_done))
    with pytest.raises(SystemExit):
        interrupted.release(lease)
    assert not record_of(provider, name).is_held
    [run] = provider.runs(name)
    assert (run.outcome, run.ended is not None) == ("failed", True)
