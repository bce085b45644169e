from collections.abc import Iterator
from datetime import timedelta

import pytest

from shedlock_py import InMemoryLockProvider, Lease, LockRequest, configure, reset, set_active
from shedlock_py.testing import FakeClock, RecordingListener


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start every test with the defaults of a new process, and restore them."""
    monkeypatch.delenv("SHEDLOCK_ACTIVE", raising=False)
    with reset():
        yield
    set_active(None)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def recorded() -> RecordingListener:
    return RecordingListener()


@pytest.fixture
def provider(clock: FakeClock, recorded: RecordingListener) -> Iterator[InMemoryLockProvider]:
    """A store with a stopped clock, configured as the default."""
    provider = InMemoryLockProvider(clock=clock)
    with configure(provider=provider, listeners=[recorded]):
        yield provider


class SlowProvider(InMemoryLockProvider):
    """A store that takes some seconds to reply to an acquire."""

    def __init__(self, clock: FakeClock, seconds: float = 0) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.seconds = seconds

    def acquire(self, request: LockRequest) -> Lease | None:
        lease = super().acquire(request)
        self.clock.advance(timedelta(seconds=self.seconds))
        return lease
