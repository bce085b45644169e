"""PostgreSQL ends our statements' sessions in sequence (pg_terminate_backend, idle_session_timeout)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from shedlock_py import LockProvider, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.kit import MOST_RETRIES, Failure, Undo, locking
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.providers.sqlalchemy.errors import classify
from shedlock_py.providers.sqlalchemy.statements import SqlCommand, SqlReply
from shedlock_py.runtime.program import drive
from tests.stores.sql.stores import KINDS, Application, Store, carry_out, drivers_of, on
from tests.support import tiers
from tests.support.locks import acquired, record_of
from tests.support.polling import wait_until

POSTGRES = drivers_of("postgres")
EITHER_KIND = pytest.mark.parametrize(
    "kind", ["url", pytest.param("engine", marks=pytest.mark.slow("the same program on a user's engine"))]
)
WAITING = "datname = current_database() AND wait_event_type = 'Lock' AND pid <> ALL (CAST(:seen AS int[]))"


@pytest.fixture
def provider(kind: str, store: Store) -> LockProvider:
    return store.provider_of(kind)


@contextmanager
def ending(store: Store, name: str, times: int) -> Iterator[None]:
    """Block statements on the record, and end the sessions of the first `times` statements."""
    ended: list[int] = []

    def end_one() -> bool:
        pid = store.query(f"SELECT pid FROM pg_stat_activity WHERE {WAITING}", seen=ended)
        if pid is None:
            return False
        ended.append(pid)
        return bool(store.query("SELECT pg_terminate_backend(:pid)", pid=pid))

    def end_them() -> None:
        with store.connect() as connection:
            connection.execution_options(isolation_level="READ COMMITTED")
            connection.execute(text("SELECT * FROM shedlock WHERE name = :name FOR UPDATE"), {"name": name})
            locked.set()
            for _ in range(times):
                wait_until(end_one, what="a statement that waits")
            connection.rollback()

    locked = threading.Event()
    thread = threading.Thread(target=end_them)
    thread.start()
    assert locked.wait(20)
    try:
        yield
    finally:
        thread.join(30)
    assert len(ended) == times


@on([driver for driver in POSTGRES if driver != "postgresql+psycopg2"])
@EITHER_KIND
def test_sessions_that_are_ended_in_mid_statement_are_not_noticed(
    provider: LockProvider, store: Store, name: str
) -> None:
    assert provider.release(acquired(provider, name))
    for times in (1, 3) if tiers.runs("full") else (3,):
        with ending(store, name, times):
            lease = acquired(provider, name)
        record = record_of(provider, name)
        assert (record.locked_by, record.fencing_token) == (lease.locked_by, lease.fencing_token)
        with ending(store, name, times):
            assert provider.extend(lease, "10m") is lease
        assert record_of(provider, name).remaining.total_seconds() > 500
        with ending(store, name, times):
            assert provider.release(lease) is True
        assert not record_of(provider, name).is_held


@pytest.mark.matrix("a driver that does not report why a session ended")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("driver", ["postgresql+psycopg2"])
def test_psycopg2_survives_one_ended_session_per_statement(provider: LockProvider, store: Store, name: str) -> None:
    lease = acquired(provider, name)
    with ending(store, name, 1):
        assert provider.extend(lease, "10m") is lease
    with ending(store, name, 2), pytest.raises(ProviderUnreachable):
        provider.extend(lease, "10m")
    assert provider.release(lease) is True


@on(POSTGRES)
@EITHER_KIND
def test_i12_an_acquire_whose_sessions_all_end_is_undone(provider: LockProvider, store: Store, name: str) -> None:
    """The undo covers the work of these statements."""
    assert provider.release(acquired(provider, name))
    times = 2 if "psycopg2" in store.driver else 1 + MOST_RETRIES
    with ending(store, name, times), pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(name, "1h"))
    assert provider.release(acquired(provider, name))


@on([driver for driver in POSTGRES if driver != "postgresql+psycopg2"])
def test_sessions_that_are_ended_while_connecting_are_not_noticed(driver: str, store: Store, name: str) -> None:
    application = Application(store)
    provider = application.provider
    ended: list[int] = []

    def end(*_: Any) -> None:
        if len(ended) < 3:
            ended.append(store.query("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE " + OTHERS))
            wait_until(lambda: not store.query("SELECT count(*) FROM pg_stat_activity WHERE " + OTHERS))

    event.listen(application.sync_engine, "connect", end, insert=True)
    assert provider.release(acquired(provider, name))
    assert ended == [1, 1, 1]


OTHERS = "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"


class Ended(Exception):
    def __init__(self, sqlstate: str) -> None:
        super().__init__("terminating connection")
        self.sqlstate = sqlstate


def ended_after(provider: SqlAlchemyLockProvider, times: int, conflicts: int = 0) -> Callable[[Any], Any]:
    """Carry statements out. The sessions of the first `times` statements end after the work, before the reply.

    The database undoes the next `conflicts` statements because of others.
    """
    done: list[SqlCommand] = []

    def execute(command: SqlCommand | Undo) -> SqlReply | None:
        if isinstance(command, Undo):
            drive(command.program, execute)
            return None
        if times <= len(done) < times + conflicts:
            done.append(command)
            raise DBAPIError("UPDATE", {}, Ended("40001"))
        reply: SqlReply = carry_out(provider, command)
        done.append(command)
        if len(done) <= times:
            raise DBAPIError("UPDATE", {}, Ended("57P01"), connection_invalidated=True)
        return reply

    return execute


@on(["postgresql+psycopg"])
def test_i12_statements_that_were_done_before_their_sessions_ended_count_once(store: Store, name: str) -> None:
    provider = store.provider()
    assert isinstance(provider, SqlAlchemyLockProvider)
    programs = provider.programs
    assert provider.release(acquired(provider, name))
    with pytest.raises(ProviderUnreachable):
        drive(locking.acquire(programs, LockRequest(name, "1h")), ended_after(provider, 1 + MOST_RETRIES))
    assert not record_of(provider, name).is_held, "undone"
    with pytest.raises(ProviderError):
        drive(locking.acquire(programs, LockRequest(name, "1h")), ended_after(provider, 1, conflicts=1 + MOST_RETRIES))
    assert not record_of(provider, name).is_held, "undone"
    lease = drive(locking.acquire(programs, LockRequest(name, "1h")), ended_after(provider, 3))
    assert lease is not None
    assert record_of(provider, name).fencing_token == lease.fencing_token
    assert drive(locking.extend(programs, lease, "2m"), ended_after(provider, 3)) is lease
    assert provider.extend(lease, "1h") is lease
    assert lease.trusted_for() <= timedelta(minutes=2), "the first of them may be done again"
    assert drive(locking.release(programs, lease), ended_after(provider, 3)) is True
    assert not record_of(provider, name).is_held


@pytest.mark.parametrize("sqlstate", ["57P01", "57P02", "57P05"])
@pytest.mark.parametrize("is_noticed", [True, False])
def test_the_codes_of_a_session_that_the_server_ended(sqlstate: str, is_noticed: bool) -> None:
    error = DBAPIError("UPDATE", {}, Ended(sqlstate), connection_invalidated=is_noticed)
    assert classify(error) is Failure.SESSION_CLOSED


@pytest.mark.parametrize("is_told", [True, False])
def test_asyncpg_has_a_code_of_its_own_for_an_ended_session(is_told: bool) -> None:
    """Broken connections have the same code, but then the server may be away."""
    original = Ended("08003")
    original.args = ("connection was closed in the middle of operation" + ": terminating connection" * is_told,)
    error = DBAPIError("UPDATE", {}, original, connection_invalidated=True)
    assert classify(error) is (Failure.SESSION_CLOSED if is_told else Failure.CONNECTION_LOST)


@pytest.mark.parametrize("sqlstate", ["57P03", "57P04", "08006"])
def test_a_server_that_starts_or_stops_is_unreachable(sqlstate: str) -> None:
    error = DBAPIError("UPDATE", {}, Ended(sqlstate), connection_invalidated=False)
    assert classify(error) is Failure.UNREACHABLE
