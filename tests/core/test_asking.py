"""From the making of a block to the store's answer: what is checked when, and how long asking took."""

import os
from datetime import timedelta

import pytest

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    Lease,
    LockAcquired,
    LockRequest,
    LockSkipped,
    configure,
    guard,
    hold,
    hold_async,
    scheduler_lock,
    shutdown,
)
from shedlock_py.testing import FakeClock, RecordingListener


class SlowProvider(InMemoryLockProvider):
    """Takes three seconds to answer."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self._clock = clock

    def acquire(self, request: LockRequest) -> Lease | None:
        self._clock.advance("2s")
        lease = super().acquire(request)
        self._clock.advance("1s")
        return lease


@pytest.fixture
def asked(clock: FakeClock, heard: RecordingListener, monkeypatch: pytest.MonkeyPatch) -> RecordingListener:
    """Hears what is told of a lock that is held, and then free."""
    clock.advance("1h")
    monkeypatch.setattr(guard, "monotonic", clock)
    provider = SlowProvider(clock)
    lease = provider.acquire(LockRequest("held", "10m"))
    assert lease is not None
    configure(provider=provider, listeners=[heard])
    return heard


def check_elapsed(heard: RecordingListener) -> None:
    skipped, acquired = heard.events[:2]
    assert isinstance(skipped, LockSkipped)
    assert isinstance(acquired, LockAcquired)
    assert skipped.elapsed == acquired.elapsed == timedelta(seconds=3)


def test_how_long_asking_took(asked: RecordingListener) -> None:
    for name in ("held", "free"):
        with hold(name):
            pass
    check_elapsed(asked)


@pytest.mark.anyio
async def test_how_long_asking_took_async(asked: RecordingListener) -> None:
    for name in ("held", "free"):
        async with hold_async(name):
            pass
    check_elapsed(asked)


def test_inside_of_its_own_lease_a_block_needs_nobody_to_say_for_how_long(provider: InMemoryLockProvider) -> None:
    with configure(provider=provider, default_lock_at_most_for=None):
        with hold("job", lock_at_most_for="1m") as lease:
            inner = hold("job")
            with inner as again:
                assert again is lease
            later = hold("job")
        with pytest.raises(ConfigurationError, match="no lock_at_most_for"), later:
            pass
        with pytest.raises(ConfigurationError, match="no lock_at_most_for"):
            hold("job")


@pytest.mark.usefixtures("provider")
def test_what_cannot_work_is_said_while_shutting_down_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown._shutdown, "process", os.getpid())

    @scheduler_lock("sync-{tenant}", on_skip="skipped")
    def sync(tenant: str) -> None: ...

    assert sync("one") == "skipped"
    with pytest.raises(ConfigurationError, match="64 at most"):
        sync("x" * 65)
