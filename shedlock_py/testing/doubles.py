"""Test doubles: a clock and a listener."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

from shedlock_py import Event, LockSkipped
from shedlock_py.model.durations import Duration, parse_duration

E = TypeVar("E", bound=Event)


class FakeClock:
    """Monotonic seconds that pass only when a test advances them::

    clock = FakeClock()
    provider = InMemoryLockProvider(clock=clock)
    ...
    clock.advance("10m")
    """

    def __init__(self, start: float = 1000.0) -> None:
        self._microseconds = round(start * 1_000_000)

    def __call__(self) -> float:
        return self._microseconds / 1_000_000

    def advance(self, duration: Duration) -> None:
        """Let ``duration`` ("10m", a ``timedelta``, or seconds) pass, to the microsecond."""
        if isinstance(duration, str):
            duration = parse_duration(duration, zero=True)
        microseconds = (
            duration // timedelta(microseconds=1) if isinstance(duration, timedelta) else round(duration * 1_000_000)
        )
        if microseconds < 0:
            raise ValueError(f"a monotonic clock does not go back: {duration!r}")
        self._microseconds += microseconds

    def __repr__(self) -> str:
        return f"<FakeClock at {self():.6f} s>"


class RecordingListener:
    """A listener that keeps every event, in order::

    events = RecordingListener()
    with configure(InMemoryLockProvider(), listeners=[events]):
        nightly_report()
    assert events.kinds() == ["LockAcquired", "TaskFinished", "LockReleased"]
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one class: ``events.of(LeaseLost)``."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def skips(self) -> list[LockSkipped]:
        """The events of tasks that were skipped: ``[skip.lock_name for skip in events.skips]``."""
        return self.of(LockSkipped)

    def kinds(self) -> list[str]:
        """Return the class names of the events."""
        return [type(event).__name__ for event in self.events]
