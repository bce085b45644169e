"""Async code on a sync provider: its threads, and an abandoned acquire."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest

from shedlock_py import (
    InMemoryLockProvider,
    Lease,
    LeaseLost,
    LockRecord,
    LockRequest,
    attempt_async,
    configure,
    hold_async,
)
from shedlock_py.runtime.asyncio_tools import ThreadedProvider
from shedlock_py.runtime.process import monotonic
from shedlock_py.testing import RecordingListener
from shedlock_py.testing.forks import in_child
from tests.support.forks import in_a_loop_of_its_own
from tests.support.logs import records_of
from tests.support.polling import until, wait_until
from tests.support.timing import Stopwatch

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("small_heap")]

LEASE = 0.6


class Silent(InMemoryLockProvider):
    """Does not reply to an acquire until the gate opens."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self.gate = gate
        self.begun = 0

    def acquire(self, request: LockRequest) -> Lease | None:
        self.begun += 1
        self.gate.wait(30)
        return super().acquire(request)


class Undoing(Silent):
    def __init__(self, gate: threading.Event) -> None:
        super().__init__(gate)
        self.undone: list[Lease] = []
        self.released: list[Lease] = []

    def undo(self, lease: Lease) -> bool:
        self.undone.append(lease)
        return super().release(lease)

    def release(self, lease: Lease) -> bool:
        self.released.append(lease)
        return super().release(lease)


@pytest.fixture
async def pollers(gate: threading.Event) -> AsyncIterator[list[asyncio.Task[object]]]:
    """Tasks that acquire a lock from a silent store, which replies at the end of the test."""
    pollers: list[asyncio.Task[object]] = []
    yield pollers
    gate.set()
    await asyncio.gather(*pollers, return_exceptions=True)


def poll(store: Silent) -> asyncio.Task[object]:
    return asyncio.create_task(attempt_async("polled", lambda: asyncio.sleep(0), lock_at_most_for="1m", provider=store))


# Threads


@pytest.mark.not_quick("waits for real seconds")
@pytest.mark.parametrize("same", [False, True], ids=["another store", "the same store"])
async def test_acquires_that_hang_delay_no_heartbeat_and_no_release(
    same: bool, gate: threading.Event, recorded: RecordingListener, pollers: list[asyncio.Task[object]]
) -> None:
    silent = Silent(gate)
    store = InMemoryLockProvider()
    if same:
        store = silent
        gate.set()
    with configure(listeners=[recorded]), ExitStack() as stack:
        async with hold_async("job", lock_at_most_for=LEASE, keep_alive=True, provider=store) as lease:
            assert lease is not None
            gate.clear()
            pollers += [poll(silent) for _ in range(30)]
            await asyncio.sleep(LEASE * 2)
            assert lease.is_trusted()
            watch = stack.enter_context(Stopwatch())
        stack.close()
        assert watch.seconds < 5
    assert not recorded.of(LeaseLost)
    record = store.record("job")
    assert record is not None
    assert not record.is_held


async def test_threads_do_not_pile_up(gate: threading.Event, pollers: list[asyncio.Task[object]]) -> None:
    silent, before = Silent(gate), threading.active_count()
    pollers += [poll(silent) for _ in range(50)]
    await until(lambda: silent.begun == 8)
    assert threading.active_count() - before <= 8
    gate.set()
    await asyncio.gather(*pollers)


@pytest.mark.not_quick("waits for real seconds")
async def test_a_provider_that_is_gone_is_not_kept() -> None:
    store = InMemoryLockProvider()
    for _ in range(20):
        await attempt_async("job", lambda: asyncio.sleep(0), lock_at_most_for="1m", provider=store)
    was = weakref.ref(store)
    del store

    def is_gone() -> bool:
        gc.collect()
        return was() is None

    await until(is_gone)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
async def test_a_forked_child_has_threads_of_its_own(
    gate: threading.Event, pollers: list[asyncio.Task[object]]
) -> None:
    silent = Silent(gate)
    pollers += [poll(silent) for _ in range(8)]
    await until(lambda: silent.begun == 8)

    async def work() -> None:
        async with asyncio.timeout(10):
            assert await ThreadedProvider(silent).record("polled") is None

    in_child(lambda: in_a_loop_of_its_own(work))


# An acquire that nobody waits for any more


@pytest.mark.parametrize("operation", ["acquire", "take_over"])
async def test_i12_an_abandoned_acquire_is_undone(operation: str, gate: threading.Event) -> None:
    """A take-over is not undone: the previous holder may still trust its lease, so the lock must stay held."""

    class Slow(Undoing):
        def take_over(self, request: LockRequest, expected: LockRecord | None = None) -> Lease:
            self.begun += 1
            self.gate.wait(30)
            return super().take_over(request, expected)

    store = Slow(gate)
    task = asyncio.create_task(getattr(ThreadedProvider(store), operation)(LockRequest("job", "1h", "1h")))
    await until(lambda: store.begun)
    task.cancel()
    gate.set()
    await asyncio.wait({task})
    assert task.cancelled()
    assert [lease.name for lease in store.undone] == (["job"] if operation == "acquire" else [])
    assert store.released == [], "as if a task had run"


async def test_i12_or_released_if_the_provider_cannot_undo(gate: threading.Event) -> None:
    class Releasing(Silent):
        released = 0

        def release(self, lease: Lease) -> bool:
            self.released += 1
            return super().release(lease)

        undo = property()  # unreadable, as in a provider written before ``undo`` existed

    store = Releasing(gate)
    task = asyncio.create_task(ThreadedProvider(store).acquire(LockRequest("job", "1h")))
    await until(lambda: store.begun)
    task.cancel()
    gate.set()
    await asyncio.wait({task})
    assert store.released == 1


async def test_undo_is_there_for_others_too(gate: threading.Event) -> None:
    gate.set()
    store = Undoing(gate)
    lease = await ThreadedProvider(store).acquire(LockRequest("job", "1h"))
    assert lease is not None
    assert await ThreadedProvider(store).undo(lease)
    assert store.undone == [lease]


async def abandon_an_acquire(store: Undoing) -> None:
    task = asyncio.create_task(ThreadedProvider(store).acquire(LockRequest("job", "1h")))
    await until(lambda: store.begun)
    for _ in range(2):  # the second one does not wait for the store
        task.cancel()
        await asyncio.sleep(0.01)
    assert task.cancelled()


def test_i12_an_acquire_that_outlives_its_event_loop_is_undone(gate: threading.Event) -> None:
    store = Undoing(gate)
    asyncio.run(abandon_an_acquire(store))
    gate.set()
    wait_until(lambda: store.undone)
    assert [lease.name for lease in store.undone] == ["job"]


def test_an_undo_without_event_loop_and_without_thread_is_logged(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    asyncio.run(abandon_an_acquire(Undoing(gate)))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    gate.set()
    wait_until(lambda: records_of(caplog))
    (record,) = records_of(caplog)
    assert (record.name, record.levelname) == ("shedlock_py", "WARNING")
    assert "can't start new thread" in record.getMessage()


def test_i12_an_acquire_that_no_thread_has_begun_when_its_event_loop_ends_never_begins(gate: threading.Event) -> None:
    store = Undoing(gate)

    async def main() -> None:
        tasks = [asyncio.create_task(ThreadedProvider(store).acquire(LockRequest(f"job-{n}", "1h"))) for n in range(20)]
        await until(lambda: store.begun == 8)
        for task in tasks * 2:
            task.cancel()
            await asyncio.sleep(0)

    asyncio.run(main())
    gate.set()
    deadline = monotonic() + 10
    while len(store.undone) < 8 and monotonic() < deadline:
        time.sleep(0.005)
    assert (len(store.undone), store.begun) == (8, 8)


# The end of the process

ENDING = """
import asyncio, sys, threading, time
from shedlock_py import InMemoryLockProvider, LockRequest
from shedlock_py.runtime.asyncio_tools import ThreadedProvider

begun, loop_has_ended = threading.Event(), threading.Event()

class Slow(InMemoryLockProvider):
    def acquire(self, request):
        if {what!r} == "acquire":
            begun.set()
            time.sleep(3600)
        if {what!r} == "undo":
            begun.set()
            loop_has_ended.wait()
        return super().acquire(request)

    def undo(self, lease):
        begun.set()
        time.sleep(0.5)
        print("undone", flush=True)
        return super().release(lease)

    def release(self, lease):
        begun.set()
        time.sleep(3600 if {what!r} == "hanging release" else 0.5)
        print("released", flush=True)
        return super().release(lease)

async def main():
    provider = ThreadedProvider(Slow())
    if {what!r} in ("acquire", "undo"):
        task = asyncio.create_task(provider.acquire(LockRequest("job", "1m")))
    else:
        lease = await provider.acquire(LockRequest("job", "1m"))
        task = asyncio.create_task(provider.release(lease))
    while not begun.is_set():
        await asyncio.sleep(0.005)

asyncio.run(main())
if {what!r} == "undo":
    begun.clear()
    loop_has_ended.set()
    begun.wait()
print("bye", flush=True)
"""


@pytest.mark.not_quick("starts a Python")
@pytest.mark.parametrize(
    ("what", "printed"),
    [
        ("acquire", ["bye"]),
        ("hanging release", ["bye"]),
        ("release", ["bye", "released"]),
        ("undo", ["bye", "undone"]),
    ],
)
def test_a_store_that_hangs_does_not_keep_the_process_from_ending(what: str, printed: list[str]) -> None:
    script = ENDING.replace("{what!r}", repr(what))
    began = monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, printed, "")
    assert monotonic() - began < 20
