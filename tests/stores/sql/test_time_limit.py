"""I13: every operation of a provider from a URL ends within its ``timeout``, whatever the server does."""

import asyncio
import re
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from shedlock_py import ConfigurationError, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.sql.stores import (
    ONE_ASYNC_EACH,
    ONE_EACH,
    SQLITE_DRIVERS,
    SYNC_DRIVERS,
    Application,
    Store,
    on,
    on_mysql_and_mariadb,
    programs_on,
)
from tests.support.blocked_loops import compute
from tests.support.database import Address
from tests.support.locks import acquired
from tests.support.polling import wait_until
from tests.support.ports import black_hole, free_port, reserve_port
from tests.support.timing import BUSY, BUSY_HERD, Stopwatch

TIMEOUT = 1.0
LONGEST = TIMEOUT * 1.1 + BUSY
HERD = 50


@contextmanager
def refusing() -> Iterator[Address]:
    yield "127.0.0.1", free_port()


@contextmanager
def silent() -> Iterator[Address]:
    """Accept connections and never reply."""
    with reserve_port() as listener:
        listener.listen(512)
        yield listener.getsockname()


FAULTS = {"refused": refusing, "black hole": black_hole, "silent": silent}
WAITED = r"limit of 1 s \(timeout\): waited for a (free )?connection"


def failed_after(request: Callable[[], object]) -> tuple[ProviderUnreachable, Stopwatch]:
    with Stopwatch() as watch, pytest.raises(ProviderUnreachable) as caught:
        request()
    return caught.value, watch


def works_again(provider: LockProvider, name: str) -> None:
    """Retry: a busy machine may need more than one time limit to connect."""

    def works() -> bool:
        with suppress(ProviderUnreachable):
            return provider.release(acquired(provider, name))
        return False

    wait_until(works, timeout=60, what="an operation within its time limit")


@pytest.mark.parametrize("fault", FAULTS)
def test_i13_a_server_that_cannot_be_reached_is_left_in_time(store: Store, fault: str, name: str) -> None:
    with FAULTS[fault]() as address:
        provider = store.provider(address, timeout=TIMEOUT)
        for _ in range(1 if fault == "silent" else 2):
            error, watch = failed_after(lambda: provider.acquire(LockRequest(name, "1m")))
            assert watch.seconds <= LONGEST
            if fault != "refused":
                assert re.search(WAITED, str(error)), error
                assert watch.elapsed >= TIMEOUT * 0.99
            assert error.__cause__ is not None


def test_i13_a_server_that_falls_silent_is_left_in_time(store: Store, proxy: TcpProxy, name: str) -> None:
    provider, other = store.provider(proxy.address, timeout=TIMEOUT), store.provider()
    lease = acquired(provider, name)
    for request in (lambda: provider.acquire(LockRequest(f"{name}-2", "1h")), lambda: provider.extend(lease, "1h")):
        proxy.stall()
        error, watch = failed_after(request)
        assert watch.seconds <= LONGEST
        assert "limit of 1 s (timeout): waited for a reply" in str(error)
        proxy.cut()
        proxy.resume()
        assert provider.record(name)
    wait_until(lambda: not (record := other.record(f"{name}-2")) or not record.is_held, what="nothing held for nobody")
    assert provider.release(lease)


def test_i13_a_server_that_is_stopped_is_left_in_time(store: Store, name: str) -> None:
    """SIGSTOP: the kernel accepts connections, and nothing replies."""
    warm, cold = store.provider(timeout=TIMEOUT), store.provider(timeout=TIMEOUT)
    warm.record(name)
    store.server.pause()
    try:
        outcomes = [failed_after(partial(provider.record, name)) for provider in (warm, cold, warm)]
    finally:
        store.server.resume()
    assert all(watch.seconds <= LONGEST for _, watch in outcomes), outcomes
    assert all("waited for a" in str(error) for error, _ in outcomes)
    works_again(warm, name)
    works_again(cold, name)


def test_i13_it_falls_silent_once_it_has_accepted_the_connection(store: Store, name: str) -> None:
    """During SQLAlchemy's first queries."""
    with TcpProxy(store.server.address) as proxy:
        for replies in (2, 4):
            provider = store.provider(proxy.address, timeout=TIMEOUT)
            proxy.reset()
            with stalling_after(proxy, replies):
                with Stopwatch() as watch, suppress(ProviderUnreachable):
                    provider.record(name)
                assert watch.seconds <= LONGEST, replies
            proxy.cut()


@on(["postgresql+psycopg", "postgresql+psycopg2"])
def test_i13_nobody_waits_for_first_queries_that_are_never_replied_to(store: Store, proxy: TcpProxy, name: str) -> None:
    """SQLAlchemy lets one connection at a time send its first queries, until one gets a reply."""
    provider = store.provider(proxy.address, timeout=TIMEOUT)
    proxy.silence("version", times=1)
    error, watch = failed_after(lambda: provider.record(name))
    assert watch.seconds <= LONGEST
    assert re.search(WAITED, str(error)), error
    assert proxy.silent_connections == 1
    assert provider.record(name) is None


@contextmanager
def stalling_after(proxy: TcpProxy, replies: int) -> Iterator[None]:
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.0005):
            if proxy.round_trips >= replies:
                proxy.stall()
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        proxy.resume()


@pytest.mark.parametrize(
    "driver",
    [
        "postgresql+psycopg",
        "mysql+pymysql",
        *(
            pytest.param(driver, marks=pytest.mark.slow("a herd with each other client"))
            for driver in ("mariadb+pymysql", *ONE_ASYNC_EACH)
        ),
    ],
)
def test_i13_fifty_threads_leave_a_silent_server_in_time(store: Store, name: str) -> None:
    errors: list[ProviderUnreachable] = []
    start = threading.Barrier(HERD)

    def acquire(number: int) -> None:
        start.wait()
        with pytest.raises(ProviderUnreachable) as caught:
            provider.acquire(LockRequest(f"{name}-{number}", "1m"))
        errors.append(caught.value)

    with silent() as address, Stopwatch() as watch:
        provider = store.provider(address, timeout="2s")
        threads = [threading.Thread(target=acquire, args=(number,)) for number in range(HERD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(errors) == HERD
    assert watch.seconds <= 2.0 * 1.1 + BUSY_HERD


async def failed_async(provider: AsyncSqlAlchemyLockProvider, name: str) -> float:
    with Stopwatch() as watch, pytest.raises(ProviderUnreachable):
        await provider.acquire(LockRequest(name, "1m"))
    return watch.seconds


@on(on_mysql_and_mariadb("aiomysql", "asyncmy"))
async def test_i13_the_tcp_connection_is_made_at_the_moment_of_the_limit(
    driver: str, store: Store, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``asyncio.wait_for`` of Python 3.11, which the drivers use, then loses the cancellation."""
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def connect_late(*args: Any, **options: Any) -> Any:
        connected = await connect(*args, **options)
        await asyncio.sleep(TIMEOUT + 0.01)
        compute(0.05)  # the loop then finds both: the connection, and the end of the time limit
        return connected

    monkeypatch.setattr(loop, "create_connection", connect_late)
    with silent() as address:
        provider = AsyncSqlAlchemyLockProvider(store.url(address), timeout=TIMEOUT)
        done, hanging = await asyncio.wait({asyncio.create_task(failed_async(provider, name))}, timeout=5)
        for task in hanging:
            task.cancel()
        assert done, "it waits for ever"
        assert done.pop().result() <= LONGEST


@on(SYNC_DRIVERS)
def test_i13_waiting_for_a_free_connection_counts(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address, timeout=TIMEOUT)
    provider.record(name)
    proxy.stall()
    threads = [
        threading.Thread(target=failed_after, args=(lambda: provider.acquire(LockRequest(name, "1m")),))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: proxy.open_connections >= 5, what="all five connections are taken")
    error, watch = failed_after(lambda: provider.record(name))
    for thread in threads:
        thread.join()
    proxy.resume()
    assert watch.seconds <= LONGEST
    assert "waited for a" in str(error)


def test_i13_a_look_up_of_the_host_name_counts(store: Store, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C libraries look names up themselves, out of a test's reach: their whole call stands still."""
    address = ("a-name-server-is-silent.invalid", 1)
    # An idle thread of the pool ends after the test; it must not wait forever.
    replied = threading.Event()

    def wait(*_: object, **__: object) -> None:
        replied.wait(30)
        raise OSError("no such name")

    provider: Any = store.provider(address, timeout=TIMEOUT)
    if store.is_async or "pymysql" in store.driver:
        monkeypatch.setattr(socket, "getaddrinfo", wait)
    else:
        monkeypatch.setattr(provider.programs.dialect, "connect", wait)
    try:
        error, watch = failed_after(lambda: provider.record(name))
    finally:
        replied.set()
    assert watch.seconds <= LONGEST
    assert "waited for a connection" in str(error)


@on(SQLITE_DRIVERS)
def test_i13_a_writer_of_sqlite_that_does_not_end_is_left_in_time(driver: str, store: Store, name: str) -> None:
    provider = store.provider(url=f"{store.url()}?timeout={TIMEOUT}")
    with closing(sqlite3.connect(store.server.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        error, watch = failed_after(lambda: provider.acquire(LockRequest(name, "1m")))
        assert watch.elapsed >= TIMEOUT * 0.8
        assert watch.seconds <= LONGEST
        assert "locked" in str(error)
        writer.execute("ROLLBACK")
        assert provider.release(acquired(provider, name))


@programs_on([*ONE_EACH, *ONE_ASYNC_EACH])
def test_i13_the_timeout_can_be_in_the_url_and_an_option(store: Store) -> None:
    with refusing() as address:
        for provider in (
            store.provider(address, timeout="3s"),
            store.provider(url=store.url(address) + ("&" if "?" in store.url(address) else "?") + "timeout=3s"),
        ):
            shown: Any = getattr(provider, "async_provider", provider)
            assert shown.programs.timeout == 3.0
            assert "timeout" not in repr(shown)


@on(SQLITE_DRIVERS)
def test_a_users_engine_keeps_its_own_limits(driver: str, store: Store) -> None:
    with pytest.raises(ConfigurationError, match="timeout= is for providers that are made from a URL"):
        Application(store, options={"timeout": "1s"})
