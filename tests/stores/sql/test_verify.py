"""verify(lease, connection): a stale holder's own transaction rolls back."""

import threading
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from shedlock_py import Lease, LeaseLostError, LockRequest
from tests.stores.sql.stores import DRIVERS, Application, Store, is_waiting, marks_of, on
from tests.support.locks import acquired
from tests.support.polling import wait_until


@pytest.fixture
def work(store: Store) -> Iterator[str]:
    """A table for the application's work."""
    with store.table() as table:
        store.execute(f"CREATE TABLE {table} (n INTEGER PRIMARY KEY)")
        yield table


@pytest.fixture
def application(store: Store) -> Application:
    return Application(store)


def insert(work: str, number: int) -> Callable[[Connection], None]:
    def do_insert(connection: Connection) -> None:
        connection.execute(text(f"INSERT INTO {work} VALUES ({number})"))

    return do_insert


@on(DRIVERS, programs=True)
def test_i2_a_holder_commits_and_a_stale_one_rolls_back(
    store: Store, application: Application, work: str, name: str
) -> None:
    provider = application.provider
    first = acquired(provider, name)
    application.run_verified(first, insert(work, 1))
    successor = provider.take_over(LockRequest(name, "1m"))
    with pytest.raises(LeaseLostError, match=name):
        application.run_verified(first, insert(work, 2))
    application.run_verified(successor, insert(work, 4))
    provider.release(successor)
    with pytest.raises(LeaseLostError):
        application.run_verified(successor, insert(work, 8))
    assert store.query(f"SELECT sum(n) FROM {work}") == 5


@on(DRIVERS, programs=True)
def test_i1_a_successor_waits_for_the_commit(store: Store, application: Application, work: str, name: str) -> None:
    lease, successor = acquired(application.provider, name), store.provider()
    counts: list[int] = []

    def take_over() -> None:
        successor.take_over(LockRequest(name, "1m"))
        counts.append(store.query(f"SELECT count(*) FROM {work}"))

    taking = threading.Thread(target=take_over)

    def wait(_: Connection) -> None:
        taking.start()
        wait_until(lambda: is_waiting(store), what="the successor waiting for the row")
        assert not counts

    application.run_verified(lease, insert(work, 1), before_commit=wait)
    taking.join(20)
    assert counts == [1], "the successor must see what the holder did"


def run_with_heartbeat(
    store: Store, application: Application, lease: Lease, work: str, level: str, *, heartbeat: bool = True
) -> None:
    """The heartbeat comes after the transaction's snapshot."""
    heartbeats = store.provider()

    def insert_and_extend(connection: Connection) -> None:
        if store.is_mariadb:
            connection.execute(text("SET innodb_snapshot_isolation = ON"))
        connection.execute(text(f"SELECT count(*) FROM {work}")).all()
        insert(work, 1)(connection)
        if heartbeat:
            assert heartbeats.extend(lease, "1m") is lease

    application.run_verified(lease, insert_and_extend, isolation_level=level)


# MySQL's snapshots do not hide rows from a locking read.
SNAPSHOTS = ["postgresql+psycopg", "postgresql+psycopg2", "postgresql+asyncpg", "mariadb+pymysql"]
LEVELS = [pytest.param(driver, "REPEATABLE READ", marks=marks_of(driver, SNAPSHOTS)) for driver in SNAPSHOTS]
LEVELS += [pytest.param("postgresql+psycopg", "SERIALIZABLE", marks=pytest.mark.slow("another level"))]


@pytest.mark.parametrize(("driver", "level"), LEVELS)
def test_a_heartbeat_since_the_snapshot_fails_closed_and_says_the_way_round(
    driver: str, level: str, store: Store, application: Application, work: str, name: str
) -> None:
    provider = application.provider
    lease = acquired(provider, name)
    with pytest.raises(DBAPIError) as failed:
        run_with_heartbeat(store, application, lease, work, level)
    (note,) = failed.value.__notes__
    assert "READ COMMITTED" in note
    assert "keep_alive" in note
    assert store.query(f"SELECT count(*) FROM {work}") == 0
    run_with_heartbeat(store, application, lease, work, "READ COMMITTED")
    store.execute(f"DELETE FROM {work}")
    run_with_heartbeat(store, application, lease, work, level, heartbeat=False)
    assert store.query(f"SELECT count(*) FROM {work}") == 1

    def insert_and_lose(connection: Connection) -> None:
        insert(work, 2)(connection)
        store.provider().take_over(LockRequest(name, "1m"))

    for isolation_level in ("READ COMMITTED", level):
        with pytest.raises((LeaseLostError, DBAPIError)):
            application.run_verified(lease, insert_and_lose, isolation_level=isolation_level)
    assert store.query(f"SELECT count(*) FROM {work}") == 1


@pytest.mark.parametrize(
    "level", ["REPEATABLE READ", pytest.param("SERIALIZABLE", marks=pytest.mark.slow("another level"))]
)
@on(["mysql+pymysql", "mysql+asyncmy"], programs=True)
def test_a_heartbeat_since_the_snapshot_does_no_harm_on_mysql(
    level: str, store: Store, application: Application, work: str, name: str
) -> None:
    lease = acquired(application.provider, name)
    run_with_heartbeat(store, application, lease, work, level)
    assert store.query(f"SELECT count(*) FROM {work}") == 1

    def insert_and_lose(connection: Connection) -> None:
        connection.execute(text(f"SELECT count(*) FROM {work}")).all()
        insert(work, 2)(connection)
        store.provider().take_over(LockRequest(name, "1m"))

    with pytest.raises(LeaseLostError):
        application.run_verified(lease, insert_and_lose, isolation_level=level)
    assert store.query(f"SELECT count(*) FROM {work}") == 1
