"""A process forks while its locks are held, or while its threads are at work. I1, I2, I13.

What a forked child may do with a provider is in the contract and in the tests of each store.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import (
    LeaseLost,
    LockExtended,
    LockRequest,
    assert_locked,
    attempt,
    attempt_async,
    configure,
    hold,
    hold_async,
)
from shedlock_py.keepalive import HeartbeatPlan
from shedlock_py.testing import RecordingListener
from shedlock_py.testing.forks import in_child
from shedlock_py.testing.proxy import TcpProxy
from tests.support.polling import wait_until
from tests.support.stores import Store

pytestmark = pytest.mark.filterwarnings("ignore:MongoClient opened before fork:UserWarning")
STORES = pytest.mark.parametrize(
    "store", ["sqlite sync", "postgres sync", "mariadb sync", "redis sync", "mongodb sync"], indirect=True
)


@pytest.fixture
def provider(store: Store) -> Iterator[Any]:
    with store.provider() as provider:
        yield provider


@pytest.fixture
def name() -> str:
    return f"forks-{uuid4().hex[:12]}"


@pytest.fixture(autouse=True)
def heartbeats_each_tenth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a lease of ten minutes: it does not end while a child takes its time."""
    monkeypatch.setattr(HeartbeatPlan, "HEARTBEATS", 6000)


@pytest.fixture
def events() -> Iterator[RecordingListener]:
    events = RecordingListener()
    with configure(listeners=[events]):
        yield events


def between_heartbeats(provider: Any, monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[object]:
    """No request is under way in the block: a child of SQLite's would be refused after that."""
    extend, mutex = provider.extend, threading.RLock()

    def extend_one_at_a_time(*args: Any) -> Any:
        with mutex:
            return extend(*args)

    monkeypatch.setattr(provider, "extend", extend_one_at_a_time)
    return mutex


@STORES
def test_a_fork_in_the_middle_of_a_heartbeat(
    provider: Any, name: str, events: RecordingListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child has its parent's lease in its memory, with a heartbeat that never ends there; it must not harm it."""
    has_begun, may_send, heartbeats = threading.Event(), threading.Event(), []
    extend = provider.extend

    def stand_still(*args: Any) -> Any:
        heartbeats.append(args)
        has_begun.set()
        may_send.wait(10)
        return extend(*args)

    def child() -> None:
        may_send.set()
        for keep_alive in (False, True):
            result = attempt(
                f"{name}-child", lambda: 7, lock_at_most_for="1m", keep_alive=keep_alive, provider=provider
            )
            assert getattr(result, "value", None) == 7
        assert provider.acquire(LockRequest(name, "1m")) is None, "the parent has it"

    monkeypatch.setattr(provider, "extend", stand_still)
    with hold(name, lock_at_most_for="10m", keep_alive=True, provider=provider) as lease:
        assert lease is not None
        assert has_begun.wait(10)
        in_child(child)
        may_send.set()
        before = len(heartbeats)
        wait_until(lambda: len(heartbeats) >= before + 2, what="more heartbeats in the parent")
        assert_locked(name)
    assert not events.of(LeaseLost)
    record = provider.record(name)
    assert record is not None
    assert not record.is_held


@STORES
def test_i2_a_child_that_leaves_the_block_does_not_release(
    provider: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutex = between_heartbeats(provider, monkeypatch)
    with hold(name, lock_at_most_for="10m", keep_alive=True, provider=provider) as lease:
        assert lease is not None

        def child() -> None:
            with suppress(SystemExit), hold(f"{name}-inner", lock_at_most_for="1m", provider=provider):
                raise SystemExit

        for _ in range(2):
            with mutex:
                in_child(child)
        record = provider.record(name)
        assert record is not None
        assert (record.locked_by, record.is_held) == (lease.locked_by, True)
        assert provider.record(f"{name}-inner").is_held is False


@pytest.mark.parametrize("store", ["sqlite sync"], indirect=True)
async def test_a_fork_inside_a_task(
    provider: Any, name: str, events: RecordingListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of an event loop has a loop of its own; the parent's lease and heartbeats stay as they are."""

    def child() -> None:
        def run() -> None:
            work = attempt_async(f"{name}-child", lambda: asyncio.sleep(0, 7), lock_at_most_for="1m", provider=provider)
            done.append(getattr(asyncio.run(work), "value", None))

        done: list[object] = []
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(30)
        assert done == [7]

    mutex = between_heartbeats(provider, monkeypatch)
    async with hold_async(name, lock_at_most_for="10m", keep_alive=True, provider=provider) as lease:
        assert lease is not None
        with mutex:
            in_child(child)
        before = len(events.of(LockExtended))
        async with asyncio.timeout(20):
            while len(events.of(LockExtended)) < before + 2:
                assert_locked(name)
                await asyncio.sleep(0.01)
    assert not events.of(LeaseLost)


FORKED = """
import ctypes, json, os, signal, sys, threading, time
from shedlock_py import ProviderError
from tests.support.stores import open_provider

provider = open_provider(**json.loads(sys.argv[2]))
provider.record("warm")
provider.close()

def child():
    signal.alarm(60)
    sys.setswitchinterval(1e-6)
    everybody = threading.Barrier(20)
    def work(number):
        everybody.wait(30)
        provider.record(f"many-{number}")
        done.append(number)
    done = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print("stall", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    try:
        provider.record("silent")
    except ProviderError:
        return 0 if len(done) == 20 and time.monotonic() - began < 10 else 1
    return 2

fork = {"Python": os.fork, "C": ctypes.PyDLL(None).fork}[sys.argv[1]]
for _ in range(3):
    pid = fork()
    if pid == 0:
        os._exit(child())
    if os.waitpid(pid, 0)[1]:
        sys.exit("a time limit of a forked process did not work")
    print("resume", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("kind", ["Python", "C"])
def test_i13_time_limits_in_a_forked_process_with_many_threads(kind: str, make_store: Callable[..., Store]) -> None:
    """Threads of a new child started PostgreSQL's watchdog at the same time, and it died. uWSGI forks in C."""
    store = make_store("postgres")
    store.options["timeout"] = "1s"
    with (
        TcpProxy(store.addresses[0]) as proxy,
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", FORKED, kind, json.dumps(store.arguments([proxy.address]))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        words = []
        for line in process.stdout:
            words.append(line.strip())
            (proxy.stall if words[-1] == "stall" else proxy.resume)()
            process.stdin.write("done\n")
            process.stdin.flush()
        assert (process.wait(60), words) == (0, ["stall", "resume"] * 3)
