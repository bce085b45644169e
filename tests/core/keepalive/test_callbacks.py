"""What listeners, ``on_lost`` and stores raise, of any kind: heartbeats go on, and the task's own result stays."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from types import FrameType
from typing import Any

import pytest

from shedlock_py import (
    Event,
    Executed,
    InMemoryLockProvider,
    Lease,
    LeaseLost,
    LockAcquired,
    LockExtended,
    LockReleased,
    LockRequest,
    ProviderFailed,
    TaskFinished,
    attempt,
    attempt_async,
    configure,
    hold,
    hold_async,
)
from shedlock_py.durations import Duration
from shedlock_py.events import Listener
from shedlock_py.testing import RecordingListener
from tests.support.doubles import AsyncFaultyProvider, FaultyProvider
from tests.support.logs import records_of
from tests.support.polling import until, wait_until

LEASE = 0.9
"""Seconds. A heartbeat may be half a second late, as on a busy machine."""
MANY = 5
"""More than there are threads for the heartbeats of one provider."""
KINDS = [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException]

pytestmark = pytest.mark.filterwarnings("error")


def failing(kind: type[BaseException], *events: type[Event]) -> Callable[[Any], None]:
    """A callback that raises ``kind``; of certain events, if given."""

    def fail(event: Event) -> None:
        if not events or isinstance(event, events):
            raise kind("of a callback")

    return fail


@contextmanager
def kept_alive(store: FaultyProvider, recorded: RecordingListener) -> Iterator[Lease]:
    """A lease whose heartbeats go on, and whose release waits for none that is gone."""
    extended = len(recorded.of(LockExtended))
    with hold("kept", lock_at_most_for=LEASE, keep_alive=True, provider=store) as lease:
        assert lease is not None
        yield lease
        wait_until(lambda: len(recorded.of(LockExtended)) >= extended + 2, what="heartbeats")
        assert lease.is_trusted()
        ended_at = time.monotonic()
    assert time.monotonic() - ended_at < 5, "the release has waited for a heartbeat"


@pytest.mark.parametrize("where", ["on_lost", "listener"])
@pytest.mark.parametrize(
    ("kind", "keep_alive"), [*((kind, True) for kind in KINDS), (SystemExit, False)], ids=lambda value: repr(value)
)
def test_callbacks_of_lost_leases(
    kind: type[BaseException], where: str, keep_alive: bool, recorded: RecordingListener
) -> None:
    store = FaultyProvider()
    on_lost = failing(kind) if where == "on_lost" else lambda _: None
    listeners: list[Listener] = [failing(kind, LeaseLost), recorded] if where == "listener" else [recorded]
    names = [f"job-{number}" for number in range(MANY)]
    with configure(listeners=listeners):
        with ExitStack() as stack:
            for name in names:
                guard = hold(name, lock_at_most_for=LEASE, keep_alive=keep_alive, on_lost=on_lost, provider=store)
                stack.enter_context(guard)
                if keep_alive:
                    store.take_over(LockRequest(name, "1m"))
            wait_until(lambda: sorted(lost.lock_name for lost in recorded.of(LeaseLost)) == names)
        with kept_alive(store, recorded):
            pass


@pytest.mark.parametrize("kind", KINDS)
def test_listeners_of_heartbeats(kind: type[BaseException], recorded: RecordingListener) -> None:
    store = FaultyProvider()
    with configure(listeners=[failing(kind, LockExtended, ProviderFailed), recorded]):
        for _ in range(2):
            with kept_alive(store, recorded):
                store.fail("extend")
                wait_until(lambda: recorded.of(ProviderFailed))
                store.recover()
    assert not recorded.of(LeaseLost)


class Exiting(FaultyProvider):
    """Such as one whose engine has a hook of the application that calls ``sys.exit()``."""

    def __init__(self, failures: list[type[BaseException]]) -> None:
        super().__init__()
        self.failures = failures

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        if self.failures:
            raise self.failures.pop()("of the store")
        extended: Lease | None = super().extend(lease, lock_at_most_for)
        return extended


class AsyncExiting(AsyncFaultyProvider):
    def __init__(self, failures: list[type[BaseException]]) -> None:
        super().__init__()
        self.failures = failures

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        if self.failures:
            raise self.failures.pop()("of the store")
        extended: Lease | None = await super().extend(lease, lock_at_most_for)
        return extended


def test_a_store_that_raises_what_would_end_a_thread(recorded: RecordingListener) -> None:
    store = Exiting(list(KINDS))
    with ExitStack() as stack:
        for number in range(2):  # of which each can bear two failures
            stack.enter_context(hold(f"job-{number}", lock_at_most_for="2s", keep_alive=True, provider=store))
        wait_until(lambda: len({event.lock_name for event in recorded.of(LockExtended)}) == 2)
    failures = [type(event.error.__cause__) for event in recorded.of(ProviderFailed)]
    assert sorted(map(repr, failures)) == sorted(map(repr, KINDS))
    assert not recorded.of(LeaseLost)


# On the event loop


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, BaseException])
@pytest.mark.parametrize("where", ["on_lost", "coroutine", "listener"])
async def test_async_callbacks_of_lost_leases(
    kind: type[BaseException], where: str, recorded: RecordingListener, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio would let SystemExit out of the event loop, past all tasks."""
    if (kind, where) == (GeneratorExit, "coroutine"):
        pytest.skip("that is how Python closes a coroutine")
    store = AsyncFaultyProvider()
    called: list[str] = []

    async def in_coroutine(lost: LeaseLost) -> None:
        await asyncio.sleep(0)
        called.append("coroutine")
        raise kind("of a callback")

    def at_once(lost: LeaseLost) -> None:
        called.append("on_lost")
        raise kind("of a callback")

    on_lost = {"on_lost": at_once, "coroutine": in_coroutine, "listener": lambda lost: called.append("listener")}
    with configure(listeners=[failing(kind, LeaseLost), recorded] if where == "listener" else [recorded]):
        async with AsyncExitStack() as stack:
            for name, keep_alive in (("kept", True), ("watched", False)):
                guard = hold_async(
                    name, lock_at_most_for=LEASE, keep_alive=keep_alive, on_lost=on_lost[where], provider=store
                )
                assert await stack.enter_async_context(guard) is not None
                store.sync.force_release(name)
            await until(lambda: len(recorded.of(LeaseLost)) == len(called) == 2)
            await asyncio.sleep(0)
    recorded.events.clear()
    assert "failed" in caplog.text
    result = await attempt_async("other", lambda: asyncio.sleep(LEASE * 1.2, "value"), lock_at_most_for=LEASE,
                                 keep_alive=True, provider=store)  # fmt: skip
    assert isinstance(result, Executed)
    assert result.lease.has_ended()
    assert not recorded.of(LeaseLost)


async def test_a_coroutine_of_on_lost_that_awaits_what_is_cancelled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def stop_work(lost: LeaseLost) -> None:
        work = asyncio.ensure_future(asyncio.sleep(60))
        work.cancel()
        await work

    store = AsyncFaultyProvider()
    async with hold_async("job", lock_at_most_for=LEASE, keep_alive=True, on_lost=stop_work, provider=store):
        store.sync.force_release("job")
        await until(lambda: "on_lost of lock 'job' failed" in caplog.text)


def test_a_coroutine_of_on_lost_that_the_end_of_the_event_loop_cancels_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def program() -> None:
        has_begun = asyncio.Event()

        async def clean_up(_: LeaseLost) -> None:
            has_begun.set()
            await asyncio.Event().wait()

        async with hold_async("job", lock_at_most_for="50ms", provider=AsyncFaultyProvider(), on_lost=clean_up):
            await has_begun.wait()

    asyncio.run(program())
    assert records_of(caplog, level=logging.ERROR) == []


@pytest.mark.parametrize("is_async", [True, False], ids=["async store", "sync store"])
async def test_a_store_that_raises_what_would_end_the_event_loop(is_async: bool, recorded: RecordingListener) -> None:
    # KeyboardInterrupt and GeneratorExit end an event loop by right; in a worker thread they are errors of the store.
    store = AsyncExiting([SystemExit, BaseException]) if is_async else Exiting(list(KINDS))
    async with AsyncExitStack() as stack:
        for number in range(2):  # of which each can bear two failures
            guard = hold_async(f"job-{number}", lock_at_most_for="2s", keep_alive=True, provider=store)
            await stack.enter_async_context(guard)
        await until(lambda: len({event.lock_name for event in recorded.of(LockExtended)}) == 2)
    assert len(recorded.of(ProviderFailed)) == (2 if is_async else 4)
    assert not recorded.of(LeaseLost)


async def test_code_that_cancels_all_tasks_but_the_guarded_one(recorded: RecordingListener) -> None:
    """As many applications do when they shut down, to let one task end in peace."""
    store = AsyncFaultyProvider()
    async with hold_async("job", lock_at_most_for=LEASE, keep_alive=True, provider=store) as lease:
        assert lease is not None
        for _ in range(2):
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                if "keepalive.py" in repr(task):
                    task.cancel()
            extended = len(recorded.of(LockExtended))
            await until(lambda: len(recorded.of(LockExtended)) >= extended + 2)  # noqa: B023 (called at once)
        assert lease.is_trusted()
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if "keepalive.py" in repr(task)]
    assert not recorded.of(LeaseLost)


async def test_a_heartbeat_that_is_cancelled_before_its_first_step(recorded: RecordingListener) -> None:
    """The next one is sent."""
    store = AsyncFaultyProvider()
    async with hold_async("job", lock_at_most_for=LEASE, keep_alive=True, provider=store):
        heartbeats: list[asyncio.Task[Any]] = []
        async with asyncio.timeout(10):
            while not heartbeats:  # in each iteration of the event loop
                await asyncio.sleep(0)
                heartbeats = [task for task in asyncio.all_tasks() if "keepalive.py" in repr(task)]
        heartbeats[0].cancel()
        await asyncio.wait(heartbeats)
        assert store.calls["extend"] == 0
        await until(lambda: recorded.of(LockExtended))
    assert not recorded.of(LeaseLost)


async def test_a_heartbeat_that_is_cancelled_while_it_waits_for_the_store(recorded: RecordingListener) -> None:
    """That is no failure of the store, and the next heartbeat is sent."""
    store = AsyncFaultyProvider()
    store.hang("extend")
    async with hold_async("job", lock_at_most_for="2s", keep_alive=True, provider=store):
        await until(lambda: store.calls["extend"])
        (heartbeat,) = [task for task in asyncio.all_tasks() if "keepalive.py" in repr(task)]
        heartbeat.cancel()
        with pytest.raises(asyncio.CancelledError):
            await heartbeat
        store.recover()
        await until(lambda: recorded.of(LockExtended))
    assert not recorded.of(ProviderFailed)
    assert not recorded.of(LeaseLost)


# The task's own result

AROUND = (LockAcquired, TaskFinished, LockReleased)


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, BaseException, asyncio.CancelledError])
@pytest.mark.parametrize("event", AROUND)
def test_i8_a_listener_does_not_replace_what_the_task_returned_or_raised(
    kind: type[BaseException], event: type[Event], recorded: RecordingListener, caplog: pytest.LogCaptureFixture
) -> None:
    store = InMemoryLockProvider()
    with configure(provider=store, listeners=[failing(kind, event), recorded], default_lock_at_most_for="1m"):
        result = attempt("job", lambda: "value")
        assert isinstance(result, Executed)
        assert result.value == "value"
        with pytest.raises(ZeroDivisionError):
            attempt("job", lambda: 1 / 0)
    assert [type(seen) for seen in recorded.events] == [*AROUND, *AROUND]
    assert len(records_of(caplog, level=logging.ERROR)) == 2


@pytest.mark.parametrize("event", AROUND)
async def test_i8_nor_what_an_async_task_returned(event: type[Event], recorded: RecordingListener) -> None:
    store = AsyncFaultyProvider()
    with configure(listeners=[failing(SystemExit, event), recorded]):
        result = await attempt_async("job", lambda: asyncio.sleep(0, "value"), lock_at_most_for="1m", provider=store)
    assert getattr(result, "value", None) == "value"
    assert [type(seen) for seen in recorded.events] == [*AROUND]


@pytest.mark.parametrize("event", AROUND)
def test_i8_nor_does_one_that_raises_keyboardinterrupt_in_another_thread(event: type[Event]) -> None:
    """No signal arrives there."""
    results: list[object] = []

    def work() -> None:
        with configure(provider=InMemoryLockProvider(), listeners=[failing(KeyboardInterrupt, event)]):
            results.append(attempt("job", lambda: "value", lock_at_most_for="1m"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert [getattr(result, "value", None) for result in results] == ["value"]


class OfASignal:
    """A handler of a signal, as a function, a method and a callable object."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise self.error

    def method(self, number: int, frame: FrameType | None) -> None:
        raise self.error


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no signals")
@pytest.mark.parametrize("event", AROUND)
@pytest.mark.parametrize("handler", ["ctrl-c", "function", "method", "object", "time-limit"])
def test_a_signal_during_a_listener_ends_the_process_after_all_were_notified_and_the_lock_is_free(
    handler: str, event: type[Event], recorded: RecordingListener
) -> None:
    """Swallowing SIGTERM's ``sys.exit()`` would leave a process that never ends; a time limit is an ``Exception``."""
    error = TimeoutError() if handler == "time-limit" else SystemExit(143)
    of_object = OfASignal(error)
    handlers: dict[str, Any] = {
        "ctrl-c": signal.default_int_handler,
        "function": lambda number, frame: of_object.method(number, frame),
        "method": of_object.method,
        "object": of_object,
        "time-limit": of_object,
    }

    def interrupted(seen: Event) -> None:
        if isinstance(seen, event):
            signal.raise_signal(signal.SIGUSR1)

    store = InMemoryLockProvider()
    before = signal.signal(signal.SIGUSR1, handlers[handler])
    try:
        with (
            configure(provider=store, listeners=[interrupted, recorded]),
            pytest.raises(KeyboardInterrupt if handler == "ctrl-c" else type(error)),
        ):
            attempt("job", lambda: "value", lock_at_most_for="1m")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [type(seen) for seen in recorded.events] == [*AROUND]
    assert store.acquire(LockRequest("job", "1m")) is not None
