"""How much longer than its time limit an operation may take in a test."""

import threading
import time
from typing import Self

BUSY = 1.0
"""More seconds of a :class:`Stopwatch`. On a quiet machine operations end within their limit and 10 % (I13)."""
BUSY_HERD = 3.0
"""The same for fifty threads or tasks at once, on two cores."""


class Stopwatch:
    """Count the seconds when this process could run: a busy machine does not break an upper bound.

    A thread counts short sleeps. A sleep that took long counts as a short sleep.
    """

    TICK = 0.005

    def __init__(self) -> None:
        self.seconds = 0.0
        self.elapsed = 0.0
        """Seconds of the clock, set at the end: for lower bounds."""
        self._began = 0.0
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.elapsed = time.monotonic() - self._began
        self._has_ended.set()
        self._thread.join()

    def _count(self) -> None:
        before = time.monotonic()
        while not self._has_ended.wait(self.TICK):
            now = time.monotonic()
            self.seconds += min(now - before, 2 * self.TICK)
            before = now
