"""``wait=``: try again until the lease is granted or the time is over, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextvars import Context
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    InMemoryLockProvider,
    Lease,
    LockAcquired,
    LockNotAcquired,
    LockRequest,
    LockSkipped,
    ProviderError,
    ProviderFailed,
    ProviderUnreachable,
    RunMissed,
    attempt,
    attempt_async,
    configure,
    hold,
    hold_async,
    provider_from_url,
    scheduler_lock,
    try_hold,
    try_hold_async,
)
from shedlock_py.events import logger
from shedlock_py.guard import block
from shedlock_py.model.waiting import FIRST_PAUSE, LONGEST_PAUSE, Waiting
from shedlock_py.testing import FakeClock, RecordingListener
from tests.support.doubles import AsyncFaultyProvider, FaultyProvider
from tests.support.logs import warnings_of
from tests.support.ports import free_port
from tests.support.stepped_loop import run_stepped

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
ALL = ["hold", "try_hold", "attempt", "hold_async", "try_hold_async", "attempt_async"]


class World:
    """A store on a clock that moves on while a guard waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.store = FaultyProvider(InMemoryLockProvider(clock=self.clock))
        self.async_store = AsyncFaultyProvider(AsyncInMemoryLockProvider(shared_with=self.store.inner))
        self.pauses: list[float] = []
        self.while_waiting: Callable[[], object] = lambda: None
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(block, "monotonic", self.clock)
        monkeypatch.setattr(block.time, "sleep", self._pause)  # type: ignore[attr-defined]  # of the module it imports

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(seconds)
        self.while_waiting()

    def holds_elsewhere(self, at_most: str) -> Any:
        lease = self.store.inner.acquire(LockRequest("job", at_most, holder="other"))
        assert lease is not None
        return lease

    def run(self, guard: str, **options: Any) -> str:
        """Return "ran", or the reason of the skip."""
        store = self.async_store if guard.endswith("_async") else self.store
        options = {"lock_at_most_for": "1m", "provider": store} | options
        if guard.endswith("_async"):
            return str(run_stepped(lambda _: self._run_async(guard, options), self._monkeypatch, self.clock))
        try:
            match guard:
                case "attempt":
                    result = attempt("job", lambda: "ran", **options)
                    return result.value if result else result.reason
                case "try_hold":
                    with try_hold("job", **options) as lease:
                        return "ran" if lease else "held"
            with hold("job", **options):
                return "ran"
        except LockNotAcquired as error:
            return error.skipped.reason

    async def _run_async(self, guard: str, options: dict[str, Any]) -> str:
        async def task() -> str:
            return "ran"

        try:
            match guard:
                case "attempt_async":
                    result = await attempt_async("job", task, **options)
                    return result.value if result else result.reason
                case "try_hold_async":
                    async with try_hold_async("job", **options) as lease:
                        return "ran" if lease else "held"
            async with hold_async("job", **options):
                return "ran"
        except LockNotAcquired as error:
            return error.skipped.reason


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("guard", ALL)
def test_it_runs_when_the_lease_of_another_ends(world: World, guard: str) -> None:
    world.holds_elsewhere("5s")
    began = world.clock()
    assert world.run(guard, wait="30s") == "ran"
    assert world.clock() - began == pytest.approx(5, abs=0.01), "no later than the record says"


@pytest.mark.parametrize("guard", ALL)
def test_it_is_skipped_when_the_time_is_over(world: World, guard: str) -> None:
    world.holds_elsewhere("1h")
    began = world.clock()
    assert world.run(guard, wait="30s") == "held"
    assert world.clock() - began == pytest.approx(30, abs=0.01)


@pytest.mark.parametrize("guard", ALL)
@pytest.mark.parametrize("wait", [None, 0])
def test_without_it_there_is_one_attempt(world: World, guard: str, wait: int | None) -> None:
    world.holds_elsewhere("5s")
    assert world.run(guard, wait=wait) == "held"
    calls = world.store.calls + world.async_store.calls
    assert (calls["acquire"], calls["record"]) == (1, 0), "it costs no second request"


def test_it_runs_soon_after_another_has_released(world: World) -> None:
    lease = world.holds_elsewhere("1h")
    world.while_waiting = lambda: world.clock() > 1010 and world.store.inner.release(lease)
    assert world.run("hold", wait="30s") == "ran"
    assert 10 < world.clock() - 1000 < 10 + 2 * LONGEST_PAUSE


def test_pauses_grow_to_a_second_and_differ(world: World) -> None:
    world.holds_elsewhere("1h")
    world.run("hold", wait="30s")
    assert FIRST_PAUSE / 2 <= world.pauses[0] <= FIRST_PAUSE
    assert max(world.pauses) <= LONGEST_PAUSE
    assert len(world.pauses) < 70
    assert len(set(world.pauses)) > len(world.pauses) / 2


def test_i11_a_fire_time_that_has_run_ends_the_wait_at_once(world: World) -> None:
    """Another fire time holds the lock; then this fire time runs elsewhere."""
    lease = world.holds_elsewhere("1h")

    def run_elsewhere() -> None:
        world.store.inner.release(lease)
        world.store.inner.release(world.store.inner.acquire(LockRequest("job", "1h", fire_time=NOON)))

    world.while_waiting = run_elsewhere
    assert world.run("hold", wait="30s", fire_time=NOON) == "already_ran"
    assert len(world.pauses) == 1


def test_i11_a_fire_time_that_runs_elsewhere_is_not_waited_for(world: World) -> None:
    assert world.store.inner.acquire(LockRequest("job", "1h", fire_time=NOON))
    assert world.run("hold", wait="30s", fire_time=NOON) == "held"
    assert world.pauses == []


def test_one_event_for_the_whole_wait(world: World) -> None:
    recorded = RecordingListener()
    with configure(listeners=[recorded]):
        world.holds_elsewhere("5s")
        world.run("hold", wait="1s")
        world.run("hold", wait="30s")
    assert [event.elapsed for event in recorded.of(LockSkipped)] == [timedelta(seconds=1)]
    assert [event.elapsed.total_seconds() for event in recorded.of(LockAcquired)] == [pytest.approx(4, abs=0.01)]


@pytest.mark.parametrize("guard", ["attempt", "attempt_async"])
def test_i14_a_store_that_is_unreachable_is_tried_again(
    world: World, guard: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for store in (world.store, world.async_store):
        store.fail("acquire")
    began, advance = world.clock(), world.clock.advance

    def advance_until_it_is_back(duration: Any) -> None:
        advance(duration)
        if world.clock() - began > 10:
            world.store.recover()
            world.async_store.recover()

    monkeypatch.setattr(world.clock, "advance", advance_until_it_is_back)
    assert world.run(guard, wait="30s") == "ran"
    assert world.clock() - began == pytest.approx(10, abs=LONGEST_PAUSE)
    assert len(warnings_of(caplog, "unreachable")) == 1


def test_i5_a_store_that_is_unreachable_until_the_end_of_the_wait_is_an_error(world: World) -> None:
    recorded = RecordingListener()
    world.store.fail("acquire")
    began = world.clock()
    with configure(listeners=[recorded]), pytest.raises(ProviderUnreachable):
        world.run("hold", wait="30s")
    assert world.clock() - began == pytest.approx(30, abs=0.01)
    assert len(recorded.of(ProviderFailed)) == 1


@pytest.mark.parametrize(("error", "wait"), [(ProviderError, "30s"), (ProviderUnreachable, None)])
def test_i5_another_error_ends_the_wait_as_does_one_without_it(
    world: World, monkeypatch: pytest.MonkeyPatch, error: type[ProviderError], wait: str | None
) -> None:
    def refuse(_: object) -> None:
        raise error("no", operation="acquire")

    monkeypatch.setattr(world.store, "acquire", refuse)
    with pytest.raises(error):
        world.run("hold", wait=wait)
    assert world.pauses == []


def test_a_process_that_is_shutting_down_waits_no_longer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.holds_elsewhere("1h")
    world.while_waiting = lambda: monkeypatch.setattr(block, "process_gates", [lambda: "shutting_down"])
    assert world.run("hold", wait="30s") == "shutting_down"
    assert len(world.pauses) == 1


def test_i12_ctrl_c_leaves_no_lock(world: World) -> None:
    lease = world.holds_elsewhere("1h")

    def interrupt() -> None:
        raise KeyboardInterrupt

    world.while_waiting = interrupt
    with pytest.raises(KeyboardInterrupt):
        world.run("hold", wait="30s")
    assert world.store.inner.release(lease)
    assert not world.store.inner.records("job")[0].is_held


def test_i12_a_cancellation_leaves_no_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = world.holds_elsewhere("1h")

    async def main() -> None:
        async def guarded() -> None:
            async with hold_async("job", lock_at_most_for="1m", provider=world.async_store, wait="30s"):
                pytest.fail("the block ran")

        task = asyncio.create_task(guarded())
        await asyncio.sleep(3)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert world.store.inner.release(lease)
        assert not world.store.inner.records("job")[0].is_held

    run_stepped(lambda _: main(), monkeypatch, world.clock)


def test_a_decorator_does_not_wait() -> None:
    options: Any = {"wait": "30s"}
    with pytest.raises(TypeError, match="wait"):
        scheduler_lock("job", "1m", **options)


def test_a_pause_ends_with_the_time() -> None:
    waiting = Waiting(timedelta(milliseconds=10), now=5.0)
    assert waiting.pause(5.0) == pytest.approx(0.01)
    assert waiting.pause(5.01) is None


# A refused fire time that no replica runs


@pytest.mark.parametrize(("refusals", "outcome"), [(3, "ran"), (1000, "held")])
@pytest.mark.parametrize("guard", ["attempt", "attempt_async"])
def test_i14_a_fire_time_that_nobody_runs_is_attempted_again(
    world: World, guard: str, refusals: int, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempts of several replicas may refuse each other on a quorum."""
    assert world.run("attempt", fire_time=NOON) == "ran"
    programs, left = world.store.inner.programs, iter(range(refusals))
    claim = programs.claim

    def refused(*arguments: Any, **options: Any) -> Any:
        if next(left, None) is None:
            return (yield from claim(*arguments, **options))
        return None

    for provider in (world.store.inner, world.async_store.inner):
        monkeypatch.setattr(provider.programs, "claim", refused)
    events = RecordingListener()
    with configure(listeners=[events]):
        assert world.run(guard, fire_time=NOON + timedelta(hours=1)) == outcome
    assert [event.reason for event in events.of(RunMissed)] == ["contested"] * (outcome == "held")


def test_a_fire_time_that_is_refused_because_it_runs_elsewhere_costs_one_attempt(world: World) -> None:
    world.store.inner.acquire(LockRequest("job", "1m", fire_time=NOON))
    assert world.run("attempt", fire_time=NOON) == "held"
    assert (world.store.calls["acquire"], world.pauses) == (1, [])


# A claim that was granted, but its reply was lost


def lose_first_reply(
    world: World, monkeypatch: pytest.MonkeyPatch, *, undone_after: float = 1e9, is_granted: bool = True, **named: bool
) -> None:
    """Let the first acquire have no reply. Its claim is undone after so many seconds.

    :param is_granted: whether the request arrived at all.
    :param named: ``names_claim``: whether the error has the claim id, as errors of the kit have.
    """
    store, undone_at = world.store.inner, world.clock() + undone_after
    claims: list[Lease | None] = []

    def acquire(request: LockRequest) -> Lease | None:
        if claims:
            if claims[0] is not None and world.clock() >= undone_at:
                store.undo(claims[0])
            lease: Lease | None = store.acquire(request)
            return lease
        claims.append(store.acquire(request) if is_granted else None)
        error = ProviderUnreachable("no reply", operation="acquire", lock_name=request.name)
        if named["names_claim"]:
            error.locked_by = f"{request.holder}#{0:032x}" if claims[0] is None else claims[0].locked_by
        raise error

    async def acquire_async(request: LockRequest) -> Lease | None:
        return acquire(request)

    monkeypatch.setattr(world.store, "acquire", acquire)
    monkeypatch.setattr(world.async_store, "acquire", acquire_async)


@pytest.fixture
def missed() -> Iterator[list[str]]:
    """The reasons of the lost runs."""
    reasons: list[str] = []
    with configure(listeners=[lambda event: reasons.append(event.reason) if isinstance(event, RunMissed) else None]):
        yield reasons


@pytest.mark.parametrize("names_claim", [True, False])
@pytest.mark.parametrize("guard", ["attempt", "attempt_async"])
def test_i14_a_fire_time_of_a_lost_reply_runs_when_its_claim_is_undone(
    world: World, guard: str, names_claim: bool, monkeypatch: pytest.MonkeyPatch, missed: list[str]
) -> None:
    began = world.clock()
    lose_first_reply(world, monkeypatch, undone_after=5, names_claim=names_claim)
    assert world.run(guard, wait="30s", fire_time=NOON) == "ran"
    assert world.clock() - began == pytest.approx(5, abs=LONGEST_PAUSE)
    assert missed == []


@pytest.mark.parametrize("names_claim", [True, False])
@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize(("at_most", "seconds"), [("1h", 30), ("5s", 5)])
@pytest.mark.parametrize("guard", ["attempt", "attempt_async"])
def test_i14_a_fire_time_of_a_lost_reply_that_cannot_run_is_an_error(
    world: World,
    guard: str,
    at_most: str,
    seconds: int,
    names_claim: bool,
    is_read: bool,
    monkeypatch: pytest.MonkeyPatch,
    missed: list[str],
) -> None:
    """A skip would say that another replica runs it."""

    def refuse(_: str) -> None:
        raise ProviderError("odd", operation="record")

    began, recorded = world.clock(), RecordingListener()
    lose_first_reply(world, monkeypatch, names_claim=names_claim)
    if not is_read:
        monkeypatch.setattr(world.store, "record", refuse)
        monkeypatch.setattr(world.async_store, "record", refuse)
    with configure(listeners=[recorded]), pytest.raises(ProviderUnreachable, match="no reply"):
        world.run(guard, wait="30s", fire_time=NOON, lock_at_most_for=at_most)
    assert world.clock() - began == pytest.approx(seconds if is_read else 30, abs=LONGEST_PAUSE)
    assert (missed, recorded.of(LockSkipped)) == ([], [])


def test_i14_a_wait_for_a_lost_claim_that_a_shutdown_ends_is_lost_with_an_event(
    world: World, monkeypatch: pytest.MonkeyPatch, missed: list[str]
) -> None:
    lose_first_reply(world, monkeypatch, names_claim=True)
    world.while_waiting = lambda: (
        len(world.pauses) > 3 and monkeypatch.setattr(block, "process_gates", [lambda: "shutting_down"])
    )
    assert world.run("attempt", wait="30s", fire_time=NOON) == "shutting_down"
    assert missed == ["cancelled"]


@pytest.mark.parametrize("pauses", [1, 4])
def test_i14_a_wait_for_a_lost_claim_that_a_signal_ends_is_lost_with_an_event(
    world: World, pauses: int, monkeypatch: pytest.MonkeyPatch, missed: list[str]
) -> None:
    """In the first pause, nobody knows yet whether the store has granted the claim."""

    def interrupt() -> None:
        if len(world.pauses) == pauses:
            raise KeyboardInterrupt

    lose_first_reply(world, monkeypatch, names_claim=True)
    world.while_waiting = interrupt
    with pytest.raises(KeyboardInterrupt):
        world.run("attempt", wait="30s", fire_time=NOON)
    assert missed == ["cancelled"]


@pytest.mark.parametrize("seconds", [FIRST_PAUSE / 4, 3.0])
def test_i14_a_wait_for_a_lost_claim_that_is_cancelled_is_lost_with_an_event(
    world: World, seconds: float, monkeypatch: pytest.MonkeyPatch, missed: list[str]
) -> None:
    async def program(_: object) -> None:
        async with (
            asyncio.timeout(seconds),
            hold_async("job", lock_at_most_for="1m", provider=world.async_store, wait="30s", fire_time=NOON),
        ):
            pass

    lose_first_reply(world, monkeypatch, names_claim=True)
    with pytest.raises(TimeoutError):
        run_stepped(program, monkeypatch, world.clock)
    assert missed == ["cancelled"]


def test_a_claim_that_is_undone_soon_is_not_watched_to_the_end_of_its_lease(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = world.clock()
    lose_first_reply(world, monkeypatch, undone_after=1, names_claim=True)
    options = {"fire_time": NOON, "recover": True, "keep_alive": True, "lock_at_most_for": "10m"}
    assert world.run("attempt", wait="30s", **options) == "ran"
    assert world.clock() - began < 3


def test_a_run_that_waited_for_the_store_keeps_no_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error's traceback has the block in its frames, so a forgotten block would go on with its heartbeats."""
    acquire = world.store.acquire

    def lose(request: LockRequest) -> None:
        monkeypatch.setattr(world.store, "acquire", acquire)
        raise ProviderUnreachable("no reply", operation="acquire", lock_name=request.name)

    monkeypatch.setattr(world.store, "acquire", lose)
    monkeypatch.setattr(logger, "disabled", True)  # pytest keeps the arguments of log lines
    guard = try_hold("job", lock_at_most_for="1m", wait="30s", provider=world.store, fire_time=NOON)
    with guard as lease:
        assert lease is not None
    found = weakref.ref(guard)
    gc.disable()
    try:
        del guard
        assert found() is None
    finally:
        gc.enable()


def test_i11_a_run_of_another_process_with_the_same_holder_is_no_lost_claim(
    world: World, monkeypatch: pytest.MonkeyPatch, missed: list[str]
) -> None:
    lose_first_reply(world, monkeypatch, is_granted=False, names_claim=True)
    world.while_waiting = lambda: world.store.inner.acquire(LockRequest("job", "1h", fire_time=NOON))
    assert world.run("attempt", wait="30s", fire_time=NOON) == "held"
    assert (len(world.pauses), missed) == (1, [])


@pytest.mark.parametrize("names_claim", [True, False])
def test_i11_a_run_of_another_thread_is_no_lost_claim(
    world: World, names_claim: bool, monkeypatch: pytest.MonkeyPatch, missed: list[str]
) -> None:
    with hold("job", lock_at_most_for="1h", provider=world.store, fire_time=NOON):
        lose_first_reply(world, monkeypatch, is_granted=False, names_claim=names_claim)
        run = Context().run  # as in another thread, the code is not inside the lease
        assert run(lambda: world.run("attempt", wait="30s", fire_time=NOON)) == "held"
    assert (len(world.pauses), missed) == (1, [])


def test_an_error_of_the_kit_names_the_claim_that_may_have_been_granted() -> None:
    store = InMemoryLockProvider()
    claim, claimed_by = store.programs.claim, list[str]()

    def without_reply(attempt: Any, **options: Any) -> Any:
        claimed_by.append(attempt.locked_by)
        yield from claim(attempt, **options)
        raise ProviderUnreachable("no reply", operation="acquire")

    store.programs.claim = without_reply  # type: ignore[assignment,method-assign]
    with pytest.raises(ProviderUnreachable) as caught:
        store.acquire(LockRequest("job", "1m"))
    assert [caught.value.locked_by] == claimed_by
    assert pickle.loads(pickle.dumps(caught.value)).locked_by == caught.value.locked_by


def test_an_error_of_a_request_that_was_not_sent_names_no_claim() -> None:
    store = provider_from_url(f"redis://127.0.0.1:{free_port()}")
    with pytest.raises(ProviderUnreachable) as caught:
        store.acquire(LockRequest("job", "1m"))
    assert caught.value.locked_by == ""
