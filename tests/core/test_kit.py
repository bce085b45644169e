"""The provider kit: its time limit for asyncio, and the choices that a store may make."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from shedlock_py import Lease, LockRecord, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.model.lease import Claim
from shedlock_py.providers.kit import (
    AsyncProgramProvider,
    Failure,
    ProgramProvider,
    ThreadedClient,
    TimedOut,
    program_provider,
    within,
)
from shedlock_py.providers.memory import AsyncInMemoryLockProvider, InMemoryLockProvider, MemoryPrograms, MemoryStore
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.program import Program, drive
from shedlock_py.testing import FakeClock
from tests.support.blocked_loops import compute
from tests.support.polling import wait_until

LIMIT = 0.05
Line = tuple[asyncio.StreamReader, socket.socket]


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    """A stream to read from, and the socket of the other side."""
    near, far = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=near)
    yield reader, far
    writer.close()
    far.close()


async def limited(seconds: float | None, reader: asyncio.StreamReader, count: int) -> bytes:
    async with within(seconds, "a reply", sent=True):
        return await reader.readexactly(count)


async def test_i13_a_reply_that_arrived_while_the_event_loop_was_blocked_counts(line: Line) -> None:
    reader, far = line
    task = asyncio.create_task(limited(LIMIT, reader, 1))
    await asyncio.sleep(0)
    far.send(b"!")
    compute(2 * LIMIT)
    assert await task == b"!"
    assert task.cancelling() == 0


@pytest.mark.parametrize("is_blocked", [True, False])
async def test_i13_a_reply_that_has_not_arrived_does_not(line: Line, is_blocked: bool) -> None:
    reader, far = line
    began = time.monotonic()
    task = asyncio.create_task(limited(LIMIT, reader, 2))
    await asyncio.sleep(0)
    far.send(b"!")
    if is_blocked:
        compute(2 * LIMIT)
    with pytest.raises(TimedOut, match="waited for a reply") as caught:
        await task
    assert caught.value.sent
    assert time.monotonic() - began >= LIMIT
    assert task.cancelling() == 0


async def test_i13_a_driver_that_loses_the_cancellation(line: Line) -> None:
    """In Python 3.11, ``asyncio.wait_for`` does so if its future is done at that moment."""

    async def request() -> None:
        async with within(LIMIT, "a connection", sent=False):
            with suppress(asyncio.CancelledError):
                await line[0].readexactly(1)
            await line[0].readexactly(1)

    task = asyncio.create_task(request())
    done, _ = await asyncio.wait({task}, timeout=5)
    task.cancel()
    assert done, "it waits for ever"
    with pytest.raises(TimedOut, match="waited for a connection"):
        await task
    assert task.cancelling() == 0


async def test_a_cancellation_is_no_time_limit(line: Line) -> None:
    for seconds in (None, LIMIT):
        task = asyncio.create_task(limited(seconds, line[0], 1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_cancelled_caller_does_not_interrupt_an_operation_that_has_begun() -> None:
    """Otherwise a late extension could arrive after the release, and the driver would lose its connection."""
    memory = AsyncInMemoryLockProvider()
    store, gate, ended = memory.programs.store, asyncio.Event(), []

    class Slow:
        async def execute(self, command: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 (of the kit's client)
            try:
                await gate.wait()
                return store.execute(command, timeout)
            finally:
                ended.append(gate.is_set())

    lease = await memory.acquire(LockRequest("job", "1m"))
    assert lease
    extending = asyncio.create_task(AsyncProgramProvider(memory.programs, Slow()).extend(lease, "1h"))
    await asyncio.sleep(0.01)
    extending.cancel()
    await asyncio.sleep(0.01)
    assert ended == []
    gate.set()
    with suppress(asyncio.CancelledError):
        await extending
    assert ended == [True]
    record = await memory.record("job")
    assert record is not None
    assert record.remaining.total_seconds() > 3000


class ReadsByItself(MemoryPrograms):
    """A store with a claim that reads the record it replaces."""

    def read_before_take_over(self, request: LockRequest) -> Program[Any, Any, LockRecord | None]:
        yield from ()
        return None

    def record(self, name: str) -> Program[Any, Any, LockRecord | None]:
        raise AssertionError("not needed")


def test_a_claim_may_read_by_itself_what_it_takes_over() -> None:
    memory = InMemoryLockProvider()
    store = memory.programs.store
    assert ProgramProvider(ReadsByItself(store, None), store).take_over(LockRequest("job", "1m")).is_trusted()


# Undo


class Lost(Exception):
    """The connection broke, and the reply with it."""


class Refused(Exception):
    """The store replied with an error."""


class Scripted(MemoryPrograms):
    """The in-memory store, with network errors."""

    def classify(self, error: Exception) -> Failure:
        known = {Lost: Failure.CONNECTION_LOST, Refused: Failure.REFUSED}
        return known.get(type(error), Failure.NOT_A_STORE_ERROR)


class FaultyStore:
    """Executes commands, then raises the given error for each command."""

    def __init__(self, provider: InMemoryLockProvider) -> None:
        self._store = provider.programs.store
        self.raises: list[BaseException | None] = []

    def execute(self, command: Any, timeout: float | None) -> Any:
        error = self.raises.pop(0) if self.raises else None
        reply = self._store.execute(command, timeout) if not isinstance(error, Refused) else None
        if error is not None:
            raise error
        return reply


def faulty(
    provider: InMemoryLockProvider, clock: Callable[[], float] = monotonic, kind: type[Scripted] = Scripted
) -> tuple[ProgramProvider, FaultyStore]:
    client = FaultyStore(provider)
    programs = kind(provider.programs.store, None)
    programs.clock, programs.timeout = clock, 1.0
    return ProgramProvider(programs, client), client


def is_free_for(provider: InMemoryLockProvider, request: LockRequest) -> bool:
    """Return whether the same run can begin elsewhere at once."""
    wait_until(lambda: not provider.records("job")[0].is_held, what="the undo")
    return provider.acquire(request) is not None


REQUEST = LockRequest("job", "1h", "1h", fire_time=datetime(2024, 5, 1, tzinfo=UTC))


def test_i12_an_outcome_that_was_in_doubt_stays_so_when_the_retry_is_refused() -> None:
    store = InMemoryLockProvider()
    provider, client = faulty(store)
    client.raises = [Lost(), Refused()]
    with pytest.raises(ProviderError):
        provider.acquire(REQUEST)
    assert is_free_for(store, REQUEST)


def test_i4_force_release_ends_the_minimum_hold_that_a_release_has_just_left() -> None:
    store = InMemoryLockProvider()
    lease = store.acquire(REQUEST)
    assert lease is not None
    freeing = store.programs.force_release("job")

    def execute(command: Any) -> Any:
        reply = store.programs.store.execute(command, None)
        store.release(lease)
        return reply

    assert drive(freeing, execute) is True
    assert is_free_for(store, LockRequest("job", "1h"))


class ScriptedReadsByItself(Scripted):
    """Like a quorum: its claim reads the record that it replaces, so the kit does not know if the lock is held."""

    def read_before_take_over(self, request: LockRequest) -> Program[Any, Any, LockRecord | None]:
        yield from ()
        return None

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> Program[Any, Any, int | None]:
        before = yield from self.record(claim.request.name)
        return (yield from super().claim(claim, before=before, force=force))


@pytest.mark.parametrize("error", [Lost(), KeyboardInterrupt()], ids=["lost replies", "Ctrl-C"])
@pytest.mark.parametrize("kind", [Scripted, ScriptedReadsByItself])
def test_i1_a_take_over_that_may_have_happened_does_not_free_the_lock(
    kind: type[Scripted], error: BaseException
) -> None:
    """The simulation found this: the previous holder trusts its lease until it learns of the take-over."""
    store = InMemoryLockProvider()
    provider, client = faulty(store, kind=kind)
    former = store.acquire(LockRequest("job", "1m"))
    assert former is not None
    client.raises = [None, error, error, error]
    with pytest.raises((ProviderError, KeyboardInterrupt)):
        provider.take_over(LockRequest("job", "2m"))
    assert former.is_trusted()
    assert store.acquire(REQUEST) is None
    assert store.records("job")[0].locked_by != former.locked_by


def test_i3_a_take_over_of_a_free_lock_that_may_have_happened_is_left_to_expire() -> None:
    """The store's clock, which calls the lock free, may have jumped, so the previous holder may trust its lease."""
    store = InMemoryLockProvider()
    provider, client = faulty(store)
    client.raises = [None, Lost(), Lost()]
    with pytest.raises(ProviderError):
        provider.take_over(REQUEST)
    record = store.records("job")[0]
    assert record.is_held
    assert record.remaining <= REQUEST.lock_at_most_for


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, TimeoutError])
def test_i12_an_exception_of_a_signal_handler_right_after_the_reply(interruption: type[BaseException]) -> None:
    """When the handler raises, the lease is granted and its clock is read: Ctrl-C, or a job's own time limit."""
    store = InMemoryLockProvider()
    raises: list[BaseException] = []

    def clock() -> float:
        if raises and store.records("job"):
            raise raises.pop()
        return monotonic()

    provider, _ = faulty(store, clock)
    raises.append(interruption())
    with pytest.raises(interruption):
        provider.acquire(REQUEST)
    assert not raises
    assert is_free_for(store, REQUEST)


class SlowStore(FaultyStore):
    """Each command takes some seconds; an operation has one command."""

    def __init__(self, provider: InMemoryLockProvider, clock: FakeClock) -> None:
        super().__init__(provider)
        self._clock = clock
        self.takes = 0.4
        self.limits: list[float | None] = []

    def execute(self, command: Any, timeout: float | None) -> Any:
        self.limits.append(timeout)
        self._clock.advance(self.takes)
        return super().execute(command, timeout)


class SlowAsyncStore(SlowStore):
    async def execute(self, command: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 (of the kit's client)
        return super().execute(command, timeout)


@pytest.mark.parametrize("is_async", [False, True])
async def test_i13_the_time_limit_is_that_of_the_operation(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second copy has only the remaining time. It is not sent if the time is over."""
    store, clock = InMemoryLockProvider(), FakeClock()
    monkeypatch.setattr(program_provider, "monotonic", clock)
    programs = Scripted(store.programs.store, None)
    programs.clock, programs.timeout = clock, 1.0
    client = (SlowAsyncStore if is_async else SlowStore)(store, clock)
    provider: Any = (AsyncProgramProvider if is_async else ProgramProvider)(programs, client)

    async def record() -> object:
        found = provider.record("job")
        return await found if is_async else found

    client.raises = [Lost()]
    assert await record() is None
    assert client.limits == [pytest.approx(1.0), pytest.approx(0.6)]
    client.takes, client.raises = 1.1, [Lost()]
    with pytest.raises(ProviderError) as caught:
        await record()
    assert len(client.limits) == 3
    assert isinstance(caught.value.__cause__, Lost), "the reason of the first failure"


def test_i2_a_release_whose_reply_was_lost_is_a_release() -> None:
    """The second copy finds nothing to do, because the first copy has released the lock."""
    provider, client = faulty(InMemoryLockProvider())
    lease = provider.acquire(LockRequest("job", "1h"))
    assert lease is not None
    client.raises = [Lost()]
    assert provider.release(lease) is True


@pytest.mark.parametrize("interruption", [SystemExit, TimeoutError])
def test_a_release_that_is_interrupted_goes_on(interruption: type[BaseException]) -> None:
    store = InMemoryLockProvider()
    provider, client = faulty(store)
    lease = provider.acquire(LockRequest("job", "1h"))
    assert lease is not None
    execute, interruptions = client.execute, [interruption()]

    def interrupted(command: Any, timeout: float | None) -> Any:
        if interruptions:
            raise interruptions.pop()
        return execute(command, timeout)

    client.execute = interrupted  # type: ignore[method-assign]  # once, before the command is carried out
    with pytest.raises(interruption):
        provider.release(lease)
    assert is_free_for(store, LockRequest("job", "1m"))


def test_a_lease_whose_release_failed_is_extended_no_more_and_can_be_released() -> None:
    provider, client = faulty(InMemoryLockProvider())
    lease = provider.acquire(LockRequest("job", "1h"))
    assert lease is not None
    client.raises = [Refused()]
    with pytest.raises(ProviderError):
        provider.release(lease)
    assert provider.extend(lease, "1m") is None
    assert provider.release(lease) is True


def test_a_repeated_release_of_a_lease_that_was_over_is_no_success() -> None:
    """Only for a trusted lease is it known that the first copy has ended it."""
    store, clock = InMemoryLockProvider(), FakeClock()
    provider, client = faulty(store, clock)
    lease = provider.acquire(LockRequest("job", "1h"))
    assert lease is not None
    clock.advance("2h")
    successor = store.take_over(LockRequest("job", "1m"))
    client.raises = [Lost()]
    assert provider.release(lease) is False
    assert lease.is_lost()
    assert store.release(successor) is True


def test_the_run_of_a_release_that_is_interrupted_after_it_was_carried_out_is_not_lost() -> None:
    ends: list[bool] = []

    class Ending(Scripted):
        def end_run(self, lease: Lease, *, is_lost: bool) -> Program[Any, Any, None]:
            ends.append(is_lost)
            yield from ()

    provider, client = faulty(InMemoryLockProvider(), kind=Ending)
    provider.programs.history = 5
    lease = provider.acquire(LockRequest("job", "1h"))
    assert lease is not None
    client.raises = [SystemExit()]
    with pytest.raises(SystemExit):
        provider.release(lease)
    wait_until(lambda: ends, what="the end of the run")
    assert ends == [False]


def test_i5_an_outage_is_no_absence_of_runs(caplog: pytest.LogCaptureFixture) -> None:
    """The store reads the runs of one name at a time."""
    provider, client = faulty(InMemoryLockProvider())
    provider.programs.history = 5
    for name in ("a", "b"):
        assert provider.acquire(LockRequest(name, "1h"))
    client.raises = [Refused()]  # for example, its runs have odd values
    assert [len(runs) for runs in provider.recent_runs(["a", "b"]).values()] == [0, 1]
    assert "Refused" in caplog.text
    client.raises = [None, Lost(), Lost()]
    with pytest.raises(ProviderUnreachable):
        provider.recent_runs(["a", "b"])


def test_an_undo_that_has_waited_for_longer_than_its_lease_is_not_begun() -> None:
    provider, client = faulty(InMemoryLockProvider())
    provider.programs.timeout = 0.05
    begun: list[str] = []
    gate, undo_claim = threading.Event(), provider.programs.undo_claim

    def undo(name: str, *rest: Any) -> Program[Any, Any, bool]:
        begun.append(name)
        gate.wait(30)
        return undo_claim(name, *rest)

    provider.programs.undo_claim = undo  # type: ignore[method-assign, assignment]  # it waits
    for request in (*[LockRequest("busy", "1h")] * 4, LockRequest("late", "100ms")):  # four threads undo
        client.raises = [Lost(), Lost()]
        with pytest.raises(ProviderError):
            provider.acquire(request)
    time.sleep(0.1)  # longer than the last lease
    gate.set()
    client.raises = [Lost(), Lost()]
    with pytest.raises(ProviderError):
        provider.acquire(LockRequest("later", "1h"))
    wait_until(lambda: "later" in begun, what="the undo of the acquire after that")
    assert begun == ["busy"] * 4 + ["later"]


async def test_a_blocking_client_for_asyncio_is_shown_and_closed() -> None:
    class Client:
        shown = "locks in a bucket"
        closed_in: int | None = None

        def execute(self, command: Any, timeout: float | None) -> Any:
            raise AssertionError(command)

        def close(self) -> None:
            self.closed_in = threading.get_ident()

    client = Client()
    provider = AsyncProgramProvider(MemoryPrograms(MemoryStore(monotonic), None), ThreadedClient(client))
    assert repr(provider) == "<AsyncProgramProvider locks in a bucket>"
    await provider.close()
    assert client.closed_in not in (None, threading.get_ident())


async def test_a_blocking_client_for_asyncio_need_have_nothing_to_close() -> None:
    class Client:
        def execute(self, command: Any, timeout: float | None) -> Any:
            raise AssertionError(command)

    provider = AsyncProgramProvider(MemoryPrograms(MemoryStore(monotonic), None), ThreadedClient(Client()))
    assert "AsyncProgramProvider object" in repr(provider)
    await provider.close()


class WaitingClient:
    """A blocking client. Its commands wait until the test ends them."""

    def __init__(self) -> None:
        self.ends = threading.Event()
        self.begun = 0

    def execute(self, command: Any, timeout: float | None) -> Any:
        self.begun += 1
        if command == "wait":
            assert self.ends.wait(60)
        return command


async def test_i13_a_threaded_client_does_not_need_the_threads_of_the_application() -> None:
    client, ends = WaitingClient(), threading.Event()
    jobs = [asyncio.create_task(asyncio.to_thread(ends.wait, 60)) for _ in range(50)]
    await asyncio.sleep(0)
    try:
        assert await ThreadedClient(client).execute("now", 60.0) == "now"
    finally:
        ends.set()
        await asyncio.wait(jobs)


async def test_i13_a_threaded_client_without_a_free_thread_sends_nothing_after_its_time() -> None:
    client = WaitingClient()
    threaded = ThreadedClient(client)
    commands = [asyncio.create_task(threaded.execute("wait", 60.0)) for _ in range(16)]
    await asyncio.to_thread(wait_until, lambda: client.begun == len(commands))
    with pytest.raises(TimedOut, match="a free thread") as late:
        await threaded.execute("late", 0.01)
    client.ends.set()
    await asyncio.gather(*commands)
    assert await threaded.execute("now", 60.0) == "now"
    assert (late.value.sent, client.begun) == (False, len(commands) + 1)
