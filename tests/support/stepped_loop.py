"""An event loop in virtual time: when it is idle, its clock moves on to the next timer. It never waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any

import pytest

from shedlock_py.election import async_elector, base
from shedlock_py.guard import async_keepalive, block, keepalive, once
from shedlock_py.runtime import process
from shedlock_py.testing import FakeClock

CLOCK_READERS = (block, once, keepalive, async_keepalive, base, async_elector)
"""The modules that read the local clock for guards, and for electors on asyncio."""


class NothingMoves(Exception):
    """All tasks wait, but no timer is set: in real time they would wait for ever."""


class _Selector(selectors.DefaultSelector):
    """A selector that moves the clock on instead of waiting."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise NothingMoves
            # an advance of less than a microsecond does not move it
            self._clock.advance(ceil(max(0.0, timeout) * 1e6) / 1e6)
        return events


class SteppedLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        super().__init__(_Selector(self.clock))

    def time(self) -> float:
        return self.clock()


@contextmanager
def local_clock(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let guards, and electors on asyncio, read this clock."""
    with monkeypatch.context() as patch:
        for module in CLOCK_READERS:  # each module has imported the function by name
            assert module.monotonic in (process.monotonic, clock)
            patch.setattr(module, "monotonic", clock)
        yield


def run_stepped(
    main: Callable[[SteppedLoop], Any], monkeypatch: pytest.MonkeyPatch, clock: FakeClock | None = None
) -> Any:
    """Run the coroutine ``main(loop)`` in virtual time. The caller checks for remaining tasks."""
    loop = SteppedLoop(clock)
    with local_clock(loop.clock, monkeypatch), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop))
