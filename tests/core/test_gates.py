"""The decision to skip a task: the gate that refuses it, when, and how long the acquire took."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    LockAcquired,
    LockRecord,
    LockRequest,
    LockSkipped,
    Skipped,
    attempt,
    configure,
    hold,
    scheduler_lock,
    try_hold,
    try_hold_async,
)
from shedlock_py.guard import block
from shedlock_py.guard.skips import lock_refused, not_leader, process_gates
from shedlock_py.settings.options import LockOptions
from shedlock_py.testing import FakeClock, RecordingListener
from tests.core.conftest import SlowProvider

NOON = datetime(2031, 5, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_the_first_gate_that_refuses_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = [lambda: None, not_leader(lambda: False), lambda: pytest.fail("the gates after it are not consulted")]
    monkeypatch.setattr(block, "process_gates", refusing)
    with (held := block.Block("job", LockOptions())) as lease:
        assert lease is None
    assert held.skip == Skipped("job", "not_leader")


@pytest.mark.parametrize(
    ("fire_time", "held_until", "last_fire_time", "reason"),
    [
        (None, NOON - HOUR, NOON, "held"),
        (NOON, NOON - HOUR, NOON, "already_ran"),
        (NOON, NOON - HOUR, NOON + HOUR, "already_ran"),
        (NOON, NOON - HOUR, NOON - HOUR, "held"),
        (NOON, NOON - HOUR, None, "held"),
        (NOON, NOON + HOUR, NOON, "held"),
    ],
)
def test_why_the_store_refused(
    fire_time: datetime | None, held_until: datetime, last_fire_time: datetime | None, reason: str
) -> None:
    request = LockRequest("job", "10m", fire_time=fire_time)
    record = LockRecord("job", "me", NOON - HOUR, held_until, 1, last_fire_time, read_at=NOON)
    assert lock_refused(request, record).reason == reason
    assert lock_refused(request, None).reason == "held"


@pytest.fixture
def _shutting_down() -> Iterator[None]:
    process_gates.append(lambda: "shutting_down")
    yield
    process_gates.pop()


@pytest.mark.usefixtures("_shutting_down")
class TestAGateOfTheProcess:
    def test_no_request_is_sent(self, provider: InMemoryLockProvider, recorded: RecordingListener) -> None:
        assert attempt("job", pytest.fail) == Skipped("job", "shutting_down")
        assert recorded.events == [LockSkipped("job", "shutting_down", timedelta(0))]
        assert provider.records() == []

    def test_what_cannot_work_is_refused_all_the_same(self, provider: InMemoryLockProvider) -> None:
        @scheduler_lock("sync-{tenant}", on_skip="skipped")
        def sync(tenant: str) -> None: ...

        assert sync("one") == "skipped"
        with pytest.raises(ConfigurationError, match="the maximum is 64"):
            sync("x" * 65)


@pytest.mark.anyio
async def test_how_long_the_acquire_took(
    clock: FakeClock, recorded: RecordingListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "monotonic", clock)
    provider = SlowProvider(clock, seconds=3)
    assert provider.acquire(LockRequest("held", "10m"))
    with configure(provider=provider, listeners=[recorded]):
        for name in ("held", "free"):
            with try_hold(name):
                pass
            async with try_hold_async(name):
                pass
    events: list[LockSkipped | LockAcquired] = [*recorded.of(LockSkipped), *recorded.of(LockAcquired)]
    assert [event.elapsed for event in events] == [timedelta(seconds=3)] * 4


def test_inside_its_own_lease_a_block_needs_no_durations(provider: InMemoryLockProvider) -> None:
    with configure(provider=provider, default_lock_at_most_for=None):
        with hold("job", lock_at_most_for="1m") as lease:
            with hold("job") as again:
                assert again is lease
            later = hold("job")
        with pytest.raises(ConfigurationError, match="no lock_at_most_for"), later:
            pass
        with pytest.raises(ConfigurationError, match="no lock_at_most_for"):
            hold("job")
