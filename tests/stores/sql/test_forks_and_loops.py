"""Processes that fork; event loops in sequence, and at the same time."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Pool, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py import LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from shedlock_py.testing.forks import in_child, python_fork
from tests.stores.sql import orphans
from tests.stores.sql.stores import ASYNC_DRIVERS, SYNC_DRIVERS, Store, on, on_mysql_and_mariadb
from tests.support import tiers
from tests.support.forked import Program
from tests.support.forks import check_fork_by_c
from tests.support.locks import acquired
from tests.support.polling import wait_until

FORKS = 60 if tiers.runs("full") else 8


PURE_DRIVERS = pytest.mark.parametrize(
    "driver",
    ["postgresql+psycopg", pytest.param("mysql+pymysql", marks=pytest.mark.slow("the same pool of SQLAlchemy"))],
)
"""For tests of SQLAlchemy's pool, not of a driver."""


def sessions(store: Store) -> set[int]:
    """Return the ids of the database's sessions, without this query's session."""
    if store.is_postgres:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    else:
        query = "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()"
    with store.connect() as connection:
        return set(connection.execute(text(query)).scalars())


@pytest.mark.parametrize("is_url", [True, False])
@on(SYNC_DRIVERS)
def test_a_child_neither_uses_nor_closes_the_sessions_of_its_parent(
    driver: str, is_url: bool, store: Store, name: str
) -> None:
    """The parent would not notice: it opens a new session and sends its request again."""
    others = sessions(store)
    provider: Any = store.provider() if is_url else store.provider_of_engine()
    lease = acquired(provider, name)
    parents = sessions(store) - others
    assert parents

    def child() -> None:
        assert provider.record(name)
        assert sessions(store) - others > parents, "the child has a session of its own"
        provider.close()
        gc.collect()

    in_child(child)
    in_child(provider.close)
    assert provider.release(lease)
    wait_until(lambda: sessions(store) - others == parents, what="the sessions of the parent, and no others")


@pytest.mark.parametrize("has_options", [False, True])
@pytest.mark.parametrize("is_disposed", [False, True])
@PURE_DRIVERS
def test_a_child_that_has_replaced_its_pool_keeps_the_new_one(
    driver: str, is_disposed: bool, has_options: bool, store: Store, name: str
) -> None:
    engine = create_engine(store.url())
    store.stack.callback(engine.dispose)
    provider = SqlAlchemyLockProvider(engine.execution_options(logging_token="locks") if has_options else engine)
    provider.record("warm")

    def child() -> None:
        if is_disposed:
            engine.dispose(close=False)  # as SQLAlchemy's documentation says
        else:
            provider.record("warm")
        with engine.connect():
            pool = engine.pool
            assert provider.release(acquired(provider, name))
            assert engine.pool is pool

    in_child(child)
    assert provider.release(acquired(provider, name))


@pytest.mark.parametrize("has_options", [False, True])
@PURE_DRIVERS
def test_a_child_takes_no_connection_of_a_pool_that_its_parent_has_replaced(
    driver: str, has_options: bool, store: Store, name: str
) -> None:
    engine = create_engine(store.url())
    store.stack.callback(engine.dispose)
    provider = SqlAlchemyLockProvider(engine.execution_options(logging_token="locks") if has_options else engine)
    provider.record("warm")
    engine.dispose()
    with engine.connect():
        pool = engine.pool

    def child() -> None:
        assert provider.release(acquired(provider, name))
        assert engine.pool is not pool

    in_child(child)
    assert engine.pool is pool
    assert provider.release(acquired(provider, name))


def test_a_pool_that_the_application_has_put_in_place_of_another_one_is_used(name: str, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/locks.db")
    provider = SqlAlchemyLockProvider(engine)
    provider.create_schema()
    engine.dispose()
    engine.pool = engine.pool.recreate()
    assert provider.release(acquired(provider, name))
    in_child(lambda: provider.release(acquired(provider, name)))
    engine.dispose()


@pytest.mark.slow("starts a Python for each kind of provider")
@pytest.mark.parametrize("kind", orphans.KINDS)
@pytest.mark.parametrize("fork", orphans.FORKS)
def test_i1_a_child_that_outlives_its_parent_on_sqlite(fork: str, kind: str, name: str, tmp_path: Path) -> None:
    """While a child had its parent's connection open, SQLite took locks that other processes could not see."""
    is_refused = fork == "C" or kind.startswith("async")  # nobody closed the parent's connections
    file = f"{tmp_path}/locks.db"

    def outsider() -> SqlAlchemyLockProvider:
        return SqlAlchemyLockProvider(f"sqlite:///{file}")

    with closing(outsider()) as provider:
        provider.create_schema()
    with Program(
        ["-W", "error", "-m", "tests.stores.sql.orphans", fork, kind, file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == ("refused\n" if is_refused else "True\n")
        parent.kill()
        parent.wait(20)
        with closing(outsider()) as provider:  # another process comes and goes, and cleans up
            assert provider.release(acquired(provider, name))
        print(file=parent.stdin, flush=True)
        assert parent.stdout.readline() == ("refused\n" if is_refused else "True\n")
        with closing(outsider()) as provider:
            for lock in ("job", "child"):
                assert (provider.acquire(LockRequest(lock, "1m")) is None) is not is_refused


REFUSED = "forked while a SQLite connection was open"


def test_a_child_uses_sqlite_by_an_engine_with_options_whose_pool_the_application_has_replaced(
    name: str, tmp_path: Path
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/locks.db")
    provider = SqlAlchemyLockProvider(engine.execution_options(logging_token="locks"))
    provider.create_schema()
    engine.dispose()

    def child() -> None:
        engine.dispose(close=False)
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT * FROM shedlock")
        assert provider.release(acquired(provider, name))

    in_child(child)
    engine.dispose()


def test_a_child_of_a_process_that_was_using_sqlite_is_refused(name: str, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/locks.db")
    provider = SqlAlchemyLockProvider(engine)
    other = SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/locks.db")
    other.create_schema()

    def child() -> None:
        for refused in (provider, other, SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/locks.db")):
            with pytest.raises(ProviderError, match=REFUSED) as caught:
                refused.acquire(LockRequest(name, "1m"))
            assert not isinstance(caught.value, ProviderUnreachable)
        with closing(SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/another.db")) as another:
            another.create_schema()
            assert another.release(acquired(another, name))

    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT * FROM shedlock")
        in_child(child)
        connection.exec_driver_sql("SELECT * FROM shedlock")
    in_child(lambda: provider.release(acquired(provider, name)))
    assert provider.release(acquired(provider, name))
    other.close()
    engine.dispose()


def test_forks_while_other_threads_open_providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork hook closes idle connections. It meets providers that are not ready, or that come and go."""
    problems: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda problem: problems.append(problem.exc_value))
    has_ended = threading.Event()
    url = f"sqlite:///{tmp_path}/locks.db"
    with closing(SqlAlchemyLockProvider(url)) as provider:
        provider.create_schema()

    def open_providers() -> None:
        while not has_ended.is_set():
            SqlAlchemyLockProvider(url).record("job")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        opening = [threading.Thread(target=open_providers, daemon=True) for _ in range(3)]
        for thread in opening:
            thread.start()
        for _ in range(FORKS):
            pid = python_fork()
            if pid == 0:
                os._exit(0)  # at once: it has copies of locks that other threads have taken
            os.waitpid(pid, 0)
    finally:
        sys.setswitchinterval(interval)
        has_ended.set()
    for thread in opening:
        thread.join(60)
    assert not problems


def test_i1_a_fork_while_a_connection_leaves_the_pool_of_sqlalchemy(name: str, tmp_path: Path) -> None:
    """Another thread forks at that moment: the child must know the file, which the connection has open by then."""
    # The schema waits for children, and a busy machine may start them slowly.
    provider = SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/locks.db", timeout="30s")

    def child() -> None:
        with pytest.raises(ProviderError, match=REFUSED):
            SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/locks.db").acquire(LockRequest(name, "1m"))

    def fork(*_: object) -> None:
        in_child(child)

    event.listen(Pool, "detach", fork)
    try:
        provider.create_schema()
    finally:
        event.remove(Pool, "detach", fork)
    provider.close()


@pytest.mark.slow("processes that fork in C, in four ways")
@on(SYNC_DRIVERS)
def test_a_child_that_c_has_forked_has_sessions_of_its_own(driver: str, store: Store, name: str) -> None:
    check_fork_by_c("url engine pool block", store.url(), name)


@pytest.mark.slow("processes that fork in C")
@on(ASYNC_DRIVERS)
def test_a_child_that_c_has_forked_between_event_loops_has_sessions_of_its_own(
    driver: str, store: Store, name: str
) -> None:
    check_fork_by_c("asyncio", store.url(), name)


@on(ASYNC_DRIVERS)
def test_event_loops_that_nobody_cleans_up_after_leave_no_session(driver: str, store: Store, name: str) -> None:
    """Each loop closes its connections at its end: no session, thread or warning is left."""
    provider = AsyncSqlAlchemyLockProvider(store.url())
    before = sessions(store)
    for i in range(3):
        asyncio.run(use_at_once(provider, f"{name}-{i}"))
    wait_until(lambda: sessions(store) <= before, what="the sessions gone")
    gc.collect()  # here, not in another test


def test_event_loops_that_nobody_cleans_up_after_leave_no_thread_on_sqlite(name: str, tmp_path: Path) -> None:
    provider = AsyncSqlAlchemyLockProvider(f"sqlite+aiosqlite:///{tmp_path}/locks.db")
    asyncio.run(provider.create_schema())
    before = threading.active_count()
    for i in range(5):
        asyncio.run(use_at_once(provider, f"{name}-{i}"))
    wait_until(lambda: threading.active_count() <= before, what="the threads gone")
    in_child(lambda: asyncio.run(use_at_once(provider, name)))  # no connection is open at the fork
    gc.collect()


async def use_at_once(provider: AsyncSqlAlchemyLockProvider, name: str) -> None:
    leases = await asyncio.gather(*(provider.acquire(LockRequest(f"{name}-{i}", "1m")) for i in range(2)))
    for lease in leases:
        assert lease
        assert await provider.release(lease)


# psycopg's connections belong to no loop. SQLAlchemy 2.0 loses other drivers' connections, and warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::sqlalchemy.exc.SAWarning")
@on(["postgresql+asyncpg", *on_mysql_and_mariadb("aiomysql", "asyncmy")])
def test_a_users_engine_from_a_second_loop_is_an_error_not_a_skip(driver: str, store: Store, name: str) -> None:
    use_from_two_loops(store, name)
    gc.collect()  # here, not in another test


def use_from_two_loops(store: Store, name: str) -> None:
    engine = create_async_engine(store.url())
    provider = AsyncSqlAlchemyLockProvider(engine)

    async def second() -> None:
        with pytest.raises(ProviderError):
            await provider.acquire(LockRequest(f"{name}-2", "1m"))

    with asyncio.Runner() as first:
        assert first.run(provider.acquire(LockRequest(name, "1m")))
        with ThreadPoolExecutor() as pool:
            pool.submit(asyncio.run, second()).result(60)
        first.run(engine.dispose())
