"""``recover=True``: a refused replica watches the run of its fire time, and recovers it. In virtual time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    ConfigurationError,
    InMemoryLockProvider,
    Lease,
    LeaseLost,
    LeaseLostError,
    LockAcquired,
    LockReleased,
    LockRequest,
    LockSkipped,
    ProviderUnreachable,
    RunMissed,
    RunRecovered,
    attempt,
    attempt_async,
    configure,
    hold,
    scheduler_lock,
    set_active,
)
from shedlock_py.guard import block
from shedlock_py.testing import FakeClock, RecordingListener
from tests.support.logs import warnings_of
from tests.support.stepped_loop import run_stepped

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)
RECOVER: Any = {"lock_at_most_for": "1m", "fire_time": NOON, "keep_alive": True, "recover": True}
COLOURS = ["sync", "async"]


class Store(InMemoryLockProvider):
    """A store that counts requests and can be switched off."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.requests: list[str] = []
        self.is_away: Callable[[str], bool] = lambda operation: False

    def _note(self, operation: str) -> None:
        self.requests.append(operation)
        if self.is_away(operation):
            raise ProviderUnreachable("down", operation=operation, lock_name="job")

    def acquire(self, request: LockRequest) -> Lease | None:
        self._note("acquire")
        return super().acquire(request)

    def record(self, name: str) -> Any:
        self._note("record")
        return super().record(name)

    def recover(self, request: LockRequest, expected: Any) -> Lease | None:
        self._note("recover")
        return super().recover(request, expected)


class World:
    """One store, on a clock that moves while a guard waits. ``at(5, action)`` runs the action after 5 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, colour: str) -> None:
        self.clock = FakeClock()
        self.store = Store(self.clock)
        self.began = self.clock()
        self.events = RecordingListener()
        self.ran = 0
        self._colour, self._monkeypatch = colour, monkeypatch
        self._actions: list[tuple[float, Callable[[], object]]] = []
        monkeypatch.setattr(block, "monotonic", self.clock)
        monkeypatch.setattr(block.time, "sleep", self._sleep)  # type: ignore[attr-defined]  # of the module it imports

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        self._actions.append((seconds, action))

    def _act(self) -> None:
        for due in [each for each in self._actions if self.elapsed() >= each[0]]:
            self._actions.remove(due)
            due[1]()

    def _sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._act()

    def elapsed(self) -> float:
        return self.clock() - self.began

    def runs_elsewhere(self, at_most: str = "1m", fire_time: datetime | None = NOON) -> Lease:
        lease = self.store.acquire(LockRequest("job", at_most, holder="other", fire_time=fire_time))
        assert lease is not None
        self.store.requests.clear()
        return lease

    def run(self, **options: Any) -> str:
        """Return "ran", or the reason of the skip."""

        def task() -> str:
            self.ran += 1
            return "ran"

        async def async_task() -> str:
            return task()

        given = RECOVER | options
        with configure(self.store, listeners=[self.events]):
            if self._colour == "sync":
                result = attempt("job", task, **given)
            else:

                async def main(_: object) -> Any:
                    async def act() -> None:
                        while True:
                            await asyncio.sleep(0.25)
                            self._act()

                    acting = asyncio.create_task(act())
                    try:
                        return await attempt_async("job", async_task, provider=self.in_place(), **given)
                    finally:
                        acting.cancel()

                result = run_stepped(main, self._monkeypatch, self.clock)
        return str(result.value if result else result.reason)

    def in_place(self) -> Any:
        """The store for async code, called without a thread."""
        store = self.store

        class InPlace(AsyncInMemoryLockProvider):
            async def acquire(self, request: LockRequest) -> Lease | None:
                return store.acquire(request)

            async def record(self, name: str) -> Any:
                return store.record(name)

            async def recover(self, request: LockRequest, expected: Any) -> Lease | None:
                return store.recover(request, expected)

        return InPlace(shared_with=store)


@pytest.fixture(params=COLOURS)
def world(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> World:
    return World(monkeypatch, request.param)


def test_i14_a_run_whose_holder_died_is_run_again_when_its_lease_ends(world: World) -> None:
    dead = world.runs_elsewhere("1m")
    assert world.run() == "ran"
    assert 60 <= world.elapsed() <= 67
    assert world.store.requests == ["acquire", "record", "record", "recover"], "one read per lease"
    [recovered] = world.events.of(RunRecovered)
    assert (recovered.fire_time, recovered.former_holder, recovered.recoveries) == (NOON, "other", 1)
    assert recovered.lease.fencing_token is not None
    assert dead.fencing_token is not None
    assert recovered.lease.fencing_token > dead.fencing_token
    kinds = [type(event) for event in world.events.events]
    assert kinds.index(RunRecovered) == kinds.index(LockAcquired) + 1
    assert world.store.record("job").is_released


def test_i11_a_run_that_ends_is_not_run_again(world: World) -> None:
    lease = world.runs_elsewhere("1m")
    world.at(40, lambda: world.store.extend(lease, "1m"))
    world.at(90, lambda: world.store.release(lease))
    assert world.run() == "already_ran"
    assert world.ran == 0
    assert len(world.events.of(LockSkipped)) == 1
    assert world.events.of(RunMissed) == []


def test_i14_a_fire_time_that_was_given_back_before_it_began_is_acquired(world: World) -> None:
    lease = world.runs_elsewhere("1m")
    world.at(5, lambda: world.store.undo(lease))
    assert world.run() == "ran"
    assert world.events.of(RunRecovered) == []


def test_a_later_fire_time_ends_the_watch(world: World) -> None:
    lease = world.runs_elsewhere("1m")

    def run_the_next() -> None:
        world.store.release(lease)
        world.runs_elsewhere(fire_time=LATER)

    world.at(30, run_the_next)
    assert world.run() == "held"
    assert world.ran == 0


def test_an_operators_pause_ends_the_watch(world: World) -> None:
    lease = world.runs_elsewhere("1m")
    world.at(30, lambda: (world.store.release(lease), world.store.pause("job", "1h")))
    assert world.run() == "held"
    assert world.events.of(RunMissed) == []


def test_i14_a_run_that_dies_each_time_is_lost_once_they_are_too_many(world: World) -> None:
    world.runs_elsewhere("1m")
    for _ in range(2):
        world.clock.advance(60)
        assert world.store.recover(LockRequest("job", "1m", fire_time=NOON), world.store.record("job"))
    assert world.run(max_recoveries=2) == "already_ran"
    assert [(event.fire_time, event.reason) for event in world.events.of(RunMissed)] == [(NOON, "too_many_recoveries")]


def test_without_it_nothing_is_watched(world: World) -> None:
    world.runs_elsewhere("1m")
    assert world.run(recover=False, keep_alive=False) == "held"
    assert world.store.requests == ["acquire", "record"]
    assert world.elapsed() == 0


def test_a_lock_that_is_held_for_another_fire_time_is_not_watched(world: World) -> None:
    world.runs_elsewhere("1m", fire_time=NOON - timedelta(hours=1))
    assert world.run() == "held"
    assert world.elapsed() == 0


def test_wait_is_for_the_lock_and_recover_for_the_run(world: World) -> None:
    """Another fire time holds the lock. Then this one begins elsewhere, and its holder dies long after the wait."""
    other = world.runs_elsewhere("1m", fire_time=NOON - timedelta(hours=1))
    world.at(2, lambda: (world.store.release(other), world.runs_elsewhere("10m")))
    assert world.run(wait="10s") == "ran"
    assert world.elapsed() > 600


def test_a_shutdown_ends_the_watch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.runs_elsewhere("1h")
    world.at(5, lambda: monkeypatch.setattr(block, "process_gates", [lambda: "shutting_down"]))
    assert world.run() == "shutting_down"
    assert world.elapsed() <= 7


@pytest.mark.parametrize("operation", ["record", "recover"])
def test_i5_an_outage_does_not_end_the_watch(world: World, operation: str, caplog: pytest.LogCaptureFixture) -> None:
    world.runs_elsewhere("1m")
    world.store.is_away = lambda each: each == operation and 60 < world.elapsed() < 90
    assert world.run() == "ran"
    assert world.elapsed() >= 90
    assert len(warnings_of(caplog, "unreachable")) == 1


def test_i14_a_recovered_lease_whose_task_never_began_is_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.runs_elsewhere("1m")
    recover = world.store.recover

    def slow(request: LockRequest, expected: Any) -> Lease | None:
        lease = recover(request, expected)
        world.clock.advance(61)
        return lease

    monkeypatch.setattr(world.store, "recover", slow)
    with pytest.raises(ProviderUnreachable, match="may be over"):
        world.run()
    monkeypatch.setattr(world.store, "recover", recover)
    assert world.run() == "ran"


# The end of a run that was cut short


def test_i14_a_run_that_on_lost_cancelled_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even if the store still has the lease, because the trust window is shorter."""
    world = World(monkeypatch, "async")

    async def hang() -> None:
        await asyncio.sleep(3600)

    async def main(_: object) -> None:
        options = RECOVER | {"keep_alive": "2m", "on_lost": "cancel"}
        with configure(listeners=[world.events]), pytest.raises(LeaseLostError):
            await attempt_async("job", hang, provider=world.in_place(), **options)

    run_stepped(main, monkeypatch, world.clock)
    world.clock.advance(60)
    record = world.store.record("job")
    assert (record.is_held, record.is_released) == (False, False)
    assert len(world.events.of(LeaseLost)) == 1
    assert world.run() == "ran"
    assert len(world.events.of(RunRecovered)) == 1


class Cancelled(BaseException):
    """An exception with the name that asyncio's has."""


Cancelled.__name__ = "CancelledError"


def cancel() -> None:
    raise Cancelled


def interrupt() -> None:
    signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("ending", ["cancelled", "SIGTERM"])
def test_i14_a_run_that_is_cut_short_is_given_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    world = World(monkeypatch, "sync")

    def end(number: int, frame: object) -> None:
        raise SystemExit(143)

    former = signal.signal(signal.SIGUSR1, end)
    try:
        with configure(world.store, listeners=[world.events]), pytest.raises((Cancelled, SystemExit)):
            attempt("job", cancel if ending == "cancelled" else interrupt, **RECOVER, lock_at_least_for="10s")
    finally:
        signal.signal(signal.SIGUSR1, former)
    record = world.store.record("job")
    assert (record.is_released, record.remaining) == (False, timedelta(seconds=10)), "I4: the minimum hold is kept"
    assert len(world.events.of(LockReleased)) == 1
    assert world.events.of(RunMissed) == []
    assert len(warnings_of(caplog, "lock 'job': the run of 2024-05-01T12:00:00+00:00 was cut short")) == 1
    assert world.run() == "ran"
    assert world.elapsed() < 12


def test_a_run_that_is_cut_short_after_its_lease_is_not_given_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(monkeypatch, "sync")

    def outlive() -> None:
        world.clock.advance(120)
        raise Cancelled

    with configure(world.store, listeners=[world.events]), pytest.raises(Cancelled):
        attempt("job", outlive, **RECOVER)
    assert warnings_of(caplog, "given back") == []
    assert len(world.events.of(LeaseLost)) == 1
    assert world.store.record("job").is_released is False


@pytest.mark.parametrize("error", [ValueError(), SystemExit(1)], ids=repr)
def test_a_run_that_fails_is_over(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    world = World(monkeypatch, "sync")
    with configure(world.store), pytest.raises(type(error)), hold("job", **RECOVER):
        raise error
    assert world.store.record("job").is_released
    assert world.run() == "already_ran"


@pytest.mark.parametrize("has_fire_time", [True, False])
def test_i14_without_it_a_cancelled_run_is_missed(
    provider: InMemoryLockProvider, recorded: RecordingListener, has_fire_time: bool
) -> None:
    with pytest.raises(Cancelled), hold("job", fire_time=NOON if has_fire_time else None):
        raise Cancelled
    assert provider.records()[0].is_released
    missed = [(event.fire_time, event.reason) for event in recorded.of(RunMissed)]
    assert missed == ([(NOON, "cancelled")] if has_fire_time else [])


# Cases that cannot work


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"keep_alive": True}, "once_per='1h'"),
        ({"keep_alive": False, "once_per": "1h"}, "keep_alive=True"),
        ({"once_per": "1h"}, "keep_alive=True"),
    ],
    ids=str,
)
def test_what_cannot_be_recovered_is_refused(provider: InMemoryLockProvider, options: Any, cure: str) -> None:
    with pytest.raises(ConfigurationError, match=cure), hold("job", recover=True, **options):
        pytest.fail("the block ran")
    with pytest.raises(ConfigurationError, match=cure):
        scheduler_lock("job", "1m", recover=True, **options)(lambda: None)()
    assert provider.records() == []


def test_a_fire_time_of_the_request_and_keep_alive_of_the_configuration_suffice(provider: InMemoryLockProvider) -> None:
    with configure(keep_alive=True), hold(LockRequest("job", "1m", fire_time=NOON), recover=True):
        assert provider.records()[0].is_held


def test_a_provider_that_cannot_recover_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InMemoryLockProvider, "recover", None)
    with (
        pytest.raises(ConfigurationError, match="InMemoryLockProvider"),
        hold("job", provider=InMemoryLockProvider(), **RECOVER),
    ):
        pytest.fail("the block ran")


def test_where_locking_is_switched_off_the_task_runs() -> None:
    set_active(False)
    assert attempt("job", lambda: "ran", lock_at_most_for="1m", once_per="1h", keep_alive=True, recover=True)
