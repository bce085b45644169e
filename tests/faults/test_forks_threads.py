"""Forks and spawned processes while a lock is held or a heartbeat is under way; 32 threads on one name.

This is the guard around a task, with keep-alive; tests/stores/*/test_forks_and_loops.py have the providers.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import (
    LeaseLost,
    LockExtended,
    LockRequest,
    Skipped,
    assert_locked,
    attempt,
    attempt_async,
    configure,
    hold,
    hold_async,
    provider_from_url,
)
from shedlock_py.lease import HeartbeatPlan
from shedlock_py.testing import RecordingListener
from shedlock_py.testing.forks import in_child
from tests.support.polling import wait_until

FULL = bool(os.environ.get("FAULTS_FULL"))
STORES = {
    "sqlite": ("", ()),
    "postgresql": ("postgres_server", ("postgresql+psycopg",)),
    "mariadb": ("mariadb_server", ("mysql+pymysql",)),
    "redis": ("redis_server", ()),
    "mongodb": ("mongodb_server", ()),
}


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    fixture, driver = STORES[request.param]
    if not fixture:
        return f"sqlite:///{tmp_path}/locks.db"
    server: Any = request.getfixturevalue(fixture)
    address: str = server.url(*driver)
    return address


@pytest.fixture
def provider(url: str) -> Iterator[Any]:
    provider: Any = provider_from_url(url)
    provider.create_schema()
    yield provider
    provider.close()


@pytest.fixture
def name() -> str:
    return f"forks-{uuid4().hex[:12]}"


@pytest.fixture(autouse=True)
def heartbeats_each_tenth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a lease of ten minutes: it does not end while a child takes its time."""
    monkeypatch.setattr(HeartbeatPlan, "HEARTBEATS", 6000)


@pytest.fixture
def heard() -> Iterator[RecordingListener]:
    heard = RecordingListener()
    with configure(listeners=[heard]):
        yield heard


def extensions(provider: Any, monkeypatch: pytest.MonkeyPatch, around: Callable[[], None]) -> list[float]:
    """The moments of the heartbeats; ``around`` is called in the middle of each, before the store is asked."""
    moments: list[float] = []
    extend = provider.extend

    def watched(*args: Any) -> Any:
        moments.append(time.monotonic())
        around()
        return extend(*args)

    monkeypatch.setattr(provider, "extend", watched)
    return moments


def between_heartbeats(provider: Any, monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[object]:
    """Where the store is not asked at this moment: after that, a child of SQLite's would be refused."""
    extend, turn = provider.extend, threading.RLock()

    def extend_in_turn(*args: Any) -> Any:
        with turn:
            return extend(*args)

    monkeypatch.setattr(provider, "extend", extend_in_turn)
    return turn


@pytest.mark.filterwarnings("ignore:MongoClient opened before fork:UserWarning")
def test_a_fork_in_the_middle_of_a_heartbeat(
    provider: Any, name: str, heard: RecordingListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child has its parent's lease in its memory, with a heartbeat that never ends there; it must not harm it."""
    is_asking, may_ask = threading.Event(), threading.Event()

    def stand_still() -> None:
        is_asking.set()
        may_ask.wait(10)

    def child() -> None:
        may_ask.set()
        for keep_alive in (False, True):
            result = attempt(
                f"{name}-child", lambda: 7, lock_at_most_for="1m", keep_alive=keep_alive, provider=provider
            )
            assert getattr(result, "value", None) == 7
        assert provider.acquire(LockRequest(name, "1m")) is None, "the parent has it"

    beats = extensions(provider, monkeypatch, stand_still)
    with hold(name, lock_at_most_for="10m", keep_alive=True, provider=provider) as lease:
        assert lease is not None
        assert is_asking.wait(10)
        in_child(child)
        may_ask.set()
        before = len(beats)
        wait_until(lambda: len(beats) >= before + 2, what="more heartbeats in the parent")
        assert_locked(name)
    assert not heard.of(LeaseLost)
    record = provider.record(name)
    assert record is not None
    assert not record.is_held


@pytest.mark.filterwarnings("ignore:MongoClient opened before fork:UserWarning")
def test_a_child_that_leaves_the_block_does_not_release(
    provider: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = between_heartbeats(provider, monkeypatch)
    with hold(name, lock_at_most_for="10m", keep_alive=True, provider=provider) as lease:
        assert lease is not None

        def child() -> None:
            with suppress(SystemExit), hold(f"{name}-inner", lock_at_most_for="1m", provider=provider):
                raise SystemExit

        for _ in range(2):
            with turn:
                in_child(child)
        record = provider.record(name)
        assert record is not None
        assert record.locked_by == lease.locked_by
        assert record.is_held
        assert provider.record(f"{name}-inner").is_held is False


def attempt_in_another_process(url: str, name: str, results: Any) -> None:
    provider: Any = provider_from_url(url)
    result = attempt(name, os.getpid, lock_at_most_for="1m", provider=provider)
    results.put("skipped" if isinstance(result, Skipped) else "ran")
    provider.close()


@pytest.mark.parametrize("url", STORES if FULL else ["sqlite", "postgresql"], indirect=True)
def test_spawned_while_held(url: str, provider: Any, name: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()

    def spawned() -> str:
        process = spawn.Process(target=attempt_in_another_process, args=(url, name, results))
        process.start()
        result: str = results.get(timeout=60)
        process.join(60)
        assert process.exitcode == 0
        return result

    with hold(name, lock_at_most_for="10m", keep_alive=True, provider=provider):
        assert spawned() == "skipped"
    assert spawned() == "ran"
    results.close()
    results.join_thread()


def test_32_threads_on_one_name(provider: Any, name: str, heard: RecordingListener) -> None:
    """One at a time: an unprotected counter comes out exact, and every token is greater than the one before."""
    inside = 0
    runs: list[int] = []

    def task() -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        time.sleep(0.001)
        inside -= 1

    def work(_: int) -> None:
        for _ in range(4):
            result = attempt(name, task, lock_at_most_for="1m", keep_alive=True, provider=provider)
            if not isinstance(result, Skipped):
                runs.append(result.lease.fencing_token or 0)

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(work, range(32)))
    assert runs
    assert len(set(runs)) == len(runs)
    assert not heard.of(LeaseLost)
    assert provider.release(provider.acquire(LockRequest(name, "1m"))) is True


def test_32_threads_extend_and_release_one_lease(provider: Any, name: str) -> None:
    """It is not promised, but does no harm: exactly one of them has released it."""
    lease = provider.acquire(LockRequest(name, "10m"))
    released: list[bool] = []

    def work(number: int) -> None:
        if number % 2:
            provider.extend(lease, "20m")
        else:
            released.append(provider.release(lease))

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(work, range(32)))
    assert any(released)
    assert not lease.is_trusted()
    record = provider.record(name)
    assert record is not None
    assert not record.is_held
    assert provider.acquire(LockRequest(name, "1m"))


async def test_a_fork_inside_a_task(
    tmp_path: Any, name: str, heard: RecordingListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of an event loop has a loop of its own; the parent's lease and heartbeat stay as they are."""
    provider: Any = provider_from_url(f"sqlite:///{tmp_path}/locks.db")
    provider.create_schema()

    def child() -> None:
        def run() -> None:
            result = asyncio.run(
                attempt_async(f"{name}-child", lambda: asyncio.sleep(0, 7), lock_at_most_for="1m", provider=provider)
            )
            done.append(getattr(result, "value", None))

        done: list[object] = []
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(30)
        assert done == [7]

    turn = between_heartbeats(provider, monkeypatch)
    async with hold_async(name, lock_at_most_for="10m", keep_alive=True, provider=provider) as lease:
        assert lease is not None
        with turn:
            in_child(child)
        before = len(heard.of(LockExtended))
        async with asyncio.timeout(20):
            while len(heard.of(LockExtended)) < before + 2:
                assert_locked(name)
                await asyncio.sleep(0.01)
    assert not heard.of(LeaseLost)
    provider.close()
