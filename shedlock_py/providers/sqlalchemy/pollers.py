"""Who asks for a lock again and again is most likely refused again."""

from __future__ import annotations

from typing import NamedTuple

from shedlock_py.rules import Clock

WINDOW_SECONDS = 1.0
MOST_NAMES = 1000


class Refusal(NamedTuple):
    at: float
    is_repeated: bool
    """Within :data:`WINDOW_SECONDS` of the one before."""


class Pollers:
    """The names that the database refused twice within a second: for another second, whoever asks looks first.

    This decides nothing: a lock is refused if the database says so, now. And for no more than that second without
    asking for the lock itself: a proxy may send those that look to a replica that has lost touch.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refusals: dict[str, Refusal] = {}  # used by several threads, each step atomic

    def has(self, name: str) -> bool:
        last = self._refusals.get(name)
        return last is not None and last.is_repeated and self._clock() - last.at < WINDOW_SECONDS

    def note(self, name: str, *, is_refused: bool) -> None:
        """What came of asking for the lock; not of looking."""
        if not is_refused:
            self._refusals.pop(name, None)
            return
        now, last = self._clock(), self._refusals.get(name)
        if last is None and len(self._refusals) >= MOST_NAMES:
            self._refusals.clear()  # who is forgotten asks for the lock itself
        self._refusals[name] = Refusal(now, last is not None and now - last.at < WINDOW_SECONDS)
