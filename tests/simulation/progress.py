"""Show the progress of a simulation: a changing line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from tests.simulation.tally import Tally

EVERY = 0.2
"""Seconds between two updates on a terminal."""
PLAIN_EVERY = 30.0
"""Seconds elsewhere, as in a log of a pipeline."""


class Progress:
    """The line of one simulation of ``hours`` simulated hours."""

    def __init__(self, hours: float, output: TextIO = sys.stdout) -> None:
        self._hours = hours
        self._output = output
        self._is_terminal = output.isatty()
        self._started = time.monotonic()
        self._shown_at = self._started
        self._width = 0

    def update(self, tally: Tally) -> None:
        """Show ``tally``, unless it was shown a moment ago."""
        now = time.monotonic()
        if now - self._shown_at < (EVERY if self._is_terminal else PLAIN_EVERY):
            return
        self._shown_at = now
        line = describe(tally, self._hours, now - self._started)
        if self._is_terminal:
            self._output.write(f"\r{line.ljust(self._width)}")
            self._width = len(line)
        else:
            self._output.write(f"{line}\n")
        self._output.flush()

    def say(self, text: str) -> None:
        """Print ``text`` on separate lines."""
        self.clear()
        self._output.write(f"{text}\n")
        self._output.flush()

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._width:
            self._output.write(f"\r{' ' * self._width}\r")
            self._width = 0


def describe(tally: Tally, hours: float, seconds: float) -> str:
    """Describe the progress, the speed, and the remaining time."""
    left = ""
    if seconds > 0 and tally.hours > 0:
        speed = tally.hours * 3600 / seconds
        left = f", {speed:,.0f} × time, {_duration((hours - tally.hours) * 3600 / speed)} left"
    return (
        f"{tally.hours:,.0f} of {hours:,.0f} hours, {tally.events:,} events, {tally.seeds:,} seeds, "
        f"{plural(len(tally.found), 'violation')}{left}"
    )


def plural(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
