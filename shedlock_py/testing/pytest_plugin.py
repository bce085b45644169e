"""Fixtures for applications' tests. Pytest loads them if this package is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shedlock_py import AsyncInMemoryLockProvider, InMemoryLockProvider
from shedlock_py.settings.defaults import configure
from shedlock_py.testing.doubles import FakeClock, RecordingListener


@pytest.fixture
def shedlock_clock() -> FakeClock:
    """The clock of ``shedlock_provider``. Call ``shedlock_clock.advance("10m")`` to let time pass."""
    return FakeClock()


@pytest.fixture
def _shedlock_recorder() -> RecordingListener:
    return RecordingListener()


@pytest.fixture
def shedlock_provider(
    shedlock_clock: FakeClock, _shedlock_recorder: RecordingListener
) -> Iterator[InMemoryLockProvider]:
    """An empty in-memory store for all guarded tasks of the test, sync and async.

    The other defaults of ``configure()`` stay; its listeners are not called.
    """
    provider = InMemoryLockProvider(clock=shedlock_clock)
    in_async_code = AsyncInMemoryLockProvider(shared_with=provider)
    with configure(provider, async_provider=in_async_code, listeners=[_shedlock_recorder]):
        yield provider


@pytest.fixture
def shedlock_events(
    shedlock_provider: InMemoryLockProvider, _shedlock_recorder: RecordingListener
) -> RecordingListener:
    """All events of the test, in order. ``shedlock_events.skips`` has the events of skipped tasks."""
    return _shedlock_recorder
