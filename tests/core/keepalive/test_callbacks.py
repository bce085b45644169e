"""Listeners, ``on_lost`` and stores raise errors of every kind: heartbeats go on, and the task's own result stays."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
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
from shedlock_py.events import Listener
from shedlock_py.guard import keepalive
from shedlock_py.model.durations import Duration
from shedlock_py.testing import RecordingListener
from tests.support.doubles import AsyncFaultyProvider, FaultyProvider
from tests.support.logs import records_of
from tests.support.polling import until, wait_until
from tests.support.stepped_timer import SteppedTimer

LEASE = 0.9
"""Seconds. A heartbeat may be half a second late, as on a busy machine."""
MANY = 5
"""More than there are threads for the heartbeats of one provider."""
KINDS = [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException]

pytestmark = pytest.mark.filterwarnings("error")


def failing(kind: type[BaseException], *events: type[Event]) -> Callable[[Any], None]:
    """Return a callback that raises ``kind``, for all events or only for these."""

    def fail(event: Event) -> None:
        if not events or isinstance(event, events):
            raise kind("of a callback")

    return fail


@pytest.fixture(autouse=True)
def stop_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that waits for a missing heartbeat does not return."""
    monkeypatch.setattr(keepalive, "STOP_SECONDS", 1000.0)


@contextmanager
def kept_alive(timer: SteppedTimer, store: FaultyProvider, recorded: RecordingListener) -> Iterator[Lease]:
    """Check that a lease is kept alive, and that its release waits for no missing heartbeat."""
    extended = len(recorded.of(LockExtended))
    with hold("kept", lock_at_most_for=LEASE, keep_alive=True, provider=store) as lease:
        assert lease is not None
        yield lease
        timer.until(lambda: len(recorded.of(LockExtended)) >= extended + 2)
        assert lease.is_trusted()


@pytest.mark.parametrize("where", ["on_lost", "listener"])
@pytest.mark.parametrize(
    ("kind", "keep_alive"), [*((kind, True) for kind in KINDS), (SystemExit, False)], ids=lambda value: repr(value)
)
def test_callbacks_of_lost_leases(
    kind: type[BaseException], where: str, keep_alive: bool, timer: SteppedTimer, recorded: RecordingListener
) -> None:
    store = timer.store()
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
            timer.until(lambda: sorted(lost.lock_name for lost in recorded.of(LeaseLost)) == names)
        with kept_alive(timer, store, recorded):
            pass


@pytest.mark.parametrize("kind", KINDS)
def test_listeners_of_heartbeats(kind: type[BaseException], timer: SteppedTimer, recorded: RecordingListener) -> None:
    store = timer.store()
    with configure(listeners=[failing(kind, LockExtended, ProviderFailed), recorded]):
        for _ in range(2):
            with kept_alive(timer, store, recorded):
                store.fail("extend")
                timer.until(lambda: recorded.of(ProviderFailed))
                store.recover()
    assert not recorded.of(LeaseLost)


class Exiting(FaultyProvider):
    """For example, its engine has a hook of the application that calls ``sys.exit()``."""

    def __init__(self, failures: list[type[BaseException]]) -> None:
        super().__init__()
        self.failures = failures

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        if self.failures:
            raise self.failures.pop()("of the store")
        extended: Lease | None = super().extend(lease, lock_at_most_for)
        return extended


def test_a_store_that_raises_what_would_end_a_thread(recorded: RecordingListener) -> None:
    store = Exiting(list(KINDS))
    with ExitStack() as stack:
        for number in range(2):  # each lease can bear two failures
            stack.enter_context(hold(f"job-{number}", lock_at_most_for="2s", keep_alive=True, provider=store))
        wait_until(lambda: len({event.lock_name for event in recorded.of(LockExtended)}) == 2)
    failures = [type(event.error.__cause__) for event in recorded.of(ProviderFailed)]
    assert sorted(map(repr, failures)) == sorted(map(repr, KINDS))
    assert not recorded.of(LeaseLost)


# On the event loop


def test_a_coroutine_of_on_lost_that_the_end_of_the_event_loop_cancels_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def program() -> None:
        has_begun = asyncio.Event()

        async def clean_up(_: LeaseLost) -> None:
            has_begun.set()
            await asyncio.Event().wait()

        async with hold_async("job", lock_at_most_for="300ms", provider=AsyncFaultyProvider(), on_lost=clean_up):
            await has_begun.wait()

    asyncio.run(program())
    assert records_of(caplog, level=logging.ERROR) == []


@pytest.mark.not_quick("waits for real seconds")
async def test_a_sync_store_that_raises_what_would_end_the_event_loop(recorded: RecordingListener) -> None:
    store = Exiting(list(KINDS))  # in a worker thread they all count as errors of the store
    async with AsyncExitStack() as stack:
        for number in range(2):  # each lease can bear two failures
            guard = hold_async(f"job-{number}", lock_at_most_for="2s", keep_alive=True, provider=store)
            await stack.enter_async_context(guard)
        await until(lambda: len({event.lock_name for event in recorded.of(LockExtended)}) == 2)
    assert len(recorded.of(ProviderFailed)) == 4
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
    """Signals arrive in the main thread only."""
    results: list[object] = []

    def work() -> None:
        with configure(provider=InMemoryLockProvider(), listeners=[failing(KeyboardInterrupt, event)]):
            results.append(attempt("job", lambda: "value", lock_at_most_for="1m"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert [getattr(result, "value", None) for result in results] == ["value"]


class OfASignal:
    """A signal handler as a function, a method and a callable object."""

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
