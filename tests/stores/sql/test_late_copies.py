"""Late copies of commands beyond the contract: verify(), tables of Java, sql_mode."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from shedlock_py import Lease, LeaseLostError, LockProvider, LockRecord, LockRequest
from shedlock_py.model.lease import Claim
from shedlock_py.providers.kit import locking
from shedlock_py.providers.sqlalchemy.statements import SqlReply
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.program import drive
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.sql.stores import (
    DRIVERS,
    ONE_EACH,
    SQLITE_DRIVERS,
    Application,
    Store,
    carry_out,
    is_waiting,
    programs_on,
    run_program,
)
from tests.support.locks import acquired, record_of
from tests.support.polling import wait_until


@pytest.fixture
def holding(store: Store) -> Iterator[TcpProxy]:
    with TcpProxy(store.server.address) as proxy:
        yield proxy


@programs_on(ONE_EACH)
def test_i2_a_stale_holder_does_not_commit_under_a_late_copy(
    driver: str, store: Store, holding: TcpProxy, name: str
) -> None:
    provider, other, application = store.provider(holding.address), store.provider(), Application(store)
    provider.record("warm")
    holding.hold(name)
    lease = acquired(provider, name)
    assert holding.holds
    application.run_verified(lease, lambda _: None)
    other.force_release(name)
    assert other.release(acquired(other, name))
    holding.deliver()
    assert record_of(other, name).is_held
    with pytest.raises(LeaseLostError):
        application.run_verified(lease, lambda _: None)


@pytest.mark.parametrize("extra_columns", [True, False])
@pytest.mark.parametrize("was_there", [True, False])
@programs_on(ONE_EACH)
def test_i1_a_late_copy_of_a_take_over_takes_nothing_from_a_later_holder(
    driver: str, store: Store, holding: TcpProxy, name: str, was_there: bool, extra_columns: bool
) -> None:
    """The lock has passed on when the first copy arrives: the later holder keeps it, with its token."""
    provider, other = store.provider(holding.address, extra_columns=extra_columns), store.provider()
    provider.record("warm")
    if was_there:
        acquired(other, name)
    holding.hold(name, skip=1)  # the first statement reads the record
    lease = provider.take_over(LockRequest(name, "1h"))
    assert holding.holds
    other.force_release(name)
    later = acquired(other, name)
    before = record_of(other, name)
    holding.deliver()
    assert record_of(other, name) == before
    assert other.extend(later, "1m") is later
    assert provider.release(lease) is False


@programs_on(ONE_EACH)
def test_i1_a_late_copy_of_a_take_over_takes_nothing_from_a_holder_that_writes_no_token(
    driver: str, store: Store, holding: TcpProxy, name: str
) -> None:
    """ShedLock for Java leaves the token unchanged."""
    provider, other = store.provider(holding.address), store.provider()
    provider.record("warm")
    token = acquired(other, name).fencing_token
    holding.hold(name, skip=1)
    provider.take_over(LockRequest(name, "1h"))
    times = "timezone('utc', clock_timestamp())" if store.is_postgres else "UTC_TIMESTAMP(6)"
    store.execute(
        f"UPDATE shedlock SET locked_by = 'java', locked_at = {times}, fencing_token = :token WHERE name = :name",
        name=name,
        token=token,
    )
    before = record_of(other, name)
    assert before.is_held
    holding.deliver()
    assert record_of(other, name) == before


FREES: dict[str, Callable[[Any, Lease], Any]] = {
    "release": lambda programs, lease: programs.set_end(lease, timedelta(0), releasing=True),
    "force release": lambda programs, lease: programs.force_release(lease.name),
    "undo": lambda programs, lease: programs.undo_claim(lease.name, lease.locked_by, None),
}


@pytest.mark.parametrize("frees", FREES)
@programs_on(ONE_EACH)
def test_i3_an_extension_that_waits_while_the_lock_is_freed_does_not_hold_it_again(
    driver: str, store: Store, name: str, frees: str
) -> None:
    """On MySQL a statement's clock stands at its start, so the waiting statement still sees a valid lease."""
    provider: Any = store.provider(timeout="30s")
    lease = acquired(provider, name)
    with ThreadPoolExecutor(1) as pool:
        with record_taken(store, name) as session:
            extending = pool.submit(provider.extend, lease, "1h")
            wait_until(lambda: is_waiting(store), what="the extension waiting for the row")
            assert drive(FREES[frees](provider.programs, lease), in_session(session)) is True
        assert extending.result(30) is None
    assert not record_of(provider, name).is_held


@programs_on(ONE_EACH)
def test_i2_a_transaction_that_waits_to_verify_while_the_lock_is_freed_does_not_commit(
    driver: str, store: Store, name: str
) -> None:
    application = Application(store)
    provider: Any = application.provider
    lease = acquired(provider, name)
    with ThreadPoolExecutor(1) as pool:
        with record_taken(store, name) as session:
            committing = pool.submit(application.run_verified, lease, lambda _: None)
            wait_until(lambda: is_waiting(store), what="the transaction waiting for the row")
            assert drive(provider.programs.force_release(name), in_session(session)) is True
        with pytest.raises(LeaseLostError):
            committing.result(20)


@contextmanager
def record_taken(store: Store, name: str) -> Iterator[Connection]:
    """Lock the record in another session's transaction, and commit at the end."""
    with store.connect() as session:
        session.exec_driver_sql("BEGIN")
        session.execute(text("SELECT name FROM shedlock WHERE name = :name FOR UPDATE"), {"name": name})
        yield session
        session.exec_driver_sql("COMMIT")


def in_session(session: Connection) -> Callable[[Any], SqlReply]:
    """Carry commands out in the transaction of ``session``."""

    def execute(command: Any) -> SqlReply:
        result = session.exec_driver_sql(command.statement.sql, dict(command.values))
        return SqlReply(rows=result.all() if result.returns_rows else (), changed=result.rowcount)

    return execute


CHANGES: dict[str, Callable[[LockRecord], LockRecord]] = {
    "locked_by": lambda record: replace(record, locked_by=record.locked_by + "x"),
    "locked_at": lambda record: replace(record, locked_at=record.locked_at - timedelta(seconds=1)),
    "fencing_token": lambda record: replace(record, fencing_token=(record.fencing_token or 0) - 1),
}


@pytest.mark.parametrize("change", CHANGES)
@programs_on([*DRIVERS, *SQLITE_DRIVERS])
def test_i1_a_take_over_replaces_exactly_the_record_that_was_read(
    driver: str, change: str, store: Store, name: str
) -> None:
    provider: Any = store.provider()
    acquired(provider, name)
    before = record_of(provider, name)

    def take_over(record: LockRecord) -> object:
        programs = (provider.async_provider if store.is_async else provider).programs
        claim = Claim(LockRequest(name, "1m"), monotonic)
        return run_program(provider, programs.claim(claim, before=record, force=True))

    assert take_over(CHANGES[change](before)) is None
    assert record_of(provider, name).locked_by == before.locked_by
    assert take_over(before) is not None


@pytest.mark.parametrize("extra_columns", [True, False])
@pytest.mark.parametrize(
    ("driver", "mode"),
    [
        pytest.param("mariadb+pymysql", "", marks=pytest.mark.slow("MariaDB has the dialect of MySQL")),
        ("mariadb+pymysql", "SIMULTANEOUS_ASSIGNMENT"),
        ("mysql+pymysql", ""),
    ],
)
def test_i6_a_late_copy_of_an_acquire_does_not_cut_short_what_was_extended(
    store: Store, mode: str, extra_columns: bool, name: str
) -> None:
    """MySQL assigns columns in sequence; MariaDB does so, or assigns all at once."""
    application = Application(store, options={"extra_columns": extra_columns})
    provider: Any = application.provider

    def connected(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET sql_mode = '{mode}'")

    event.listen(application.sync_engine, "connect", connected)
    for _ in range(2):  # a record that is absent, and a free record
        sent: list[Any] = []
        lease = drive(locking.acquire(provider.programs, LockRequest(name, "1m")), noting(provider, sent))
        assert lease is not None
        assert record_of(provider, name).remaining > timedelta(seconds=50)
        assert provider.extend(lease, "10m") is lease
        extended = record_of(provider, name)
        carry_out(provider, sent[-1])
        late = record_of(provider, name)
        assert (late.locked_by, late.fencing_token) == (lease.locked_by, lease.fencing_token)
        assert late.lock_until == extended.lock_until
        assert provider.release(lease)
        carry_out(provider, sent[-1])
        assert record_of(provider, name).is_held is not extra_columns, "without tokens it cannot be told: bounded by I3"
        provider.force_release(name)


@programs_on(ONE_EACH)
def test_i12_a_late_copy_during_the_minimum_hold_begins_no_run(driver: str, store: Store, name: str) -> None:
    with store.table() as table:
        provider: Any = store.provider(table_name=table, history=3)
        provider.create_schema()
        sent: list[Any] = []
        lease = drive(locking.acquire(provider.programs, LockRequest(name, "1m", "1m")), noting(provider, sent))
        assert lease is not None
        assert provider.release(lease)
        for command in sent:
            carry_out(provider, command)
        runs = provider.runs(name)
        store.execute(f"DROP TABLE {table}_runs")
    assert [(run.fencing_token, run.outcome) for run in runs] == [(lease.fencing_token, "ok")]


def noting(provider: LockProvider, sent: list[Any]) -> Callable[[Any], Any]:
    """Carry commands out, and record them."""

    def execute(command: Any) -> Any:
        sent.append(command)
        return carry_out(provider, command)

    return execute
