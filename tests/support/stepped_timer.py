"""The timer of threads in virtual time: a task lets time pass, and everything due happens before the task goes on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any

import pytest

from shedlock_py import InMemoryLockProvider
from shedlock_py.guard import keepalive
from shedlock_py.runtime.threads import HEARTBEAT_WORKERS, worker_pool
from shedlock_py.testing import FakeClock
from tests.support.doubles import FaultyProvider
from tests.support.polling import wait_until
from tests.support.stepped_loop import local_clock

STEP = 0.005
"""Virtual seconds between two checks of a condition."""
LONGEST = 100.0
"""Virtual seconds that a condition may take."""
REPORT = "shedlock-on-lost"


class SteppedTimer:
    """Stands in for :class:`shedlock_py.runtime.threads.Timer`. Callbacks run in the thread that lets time pass.

    Heartbeats still run in threads. Time stands still until each heartbeat has its reply, hangs in a
    :class:`FaultyProvider`, or waits for a thread.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.due: dict[Callable[[], object], float] = {}
        self._pools: dict[int, _Pool] = {}

    def store(self, kind: Callable[[InMemoryLockProvider], FaultyProvider] = FaultyProvider) -> FaultyProvider:
        return kind(InMemoryLockProvider(clock=self.clock))

    def schedule(self, callback: Callable[[], object], when: float) -> None:
        self.due[callback] = when

    def cancel(self, callback: Callable[[], object]) -> None:
        self.due.pop(callback, None)

    def advance(self, seconds: float) -> None:
        """Let time pass. Each callback runs at the time it is due."""
        self._settle()
        end = self.clock() + seconds
        while self.due and (when := min(self.due.values())) <= end:
            self._move_to(when)
            callback = min(self.due, key=self.due.__getitem__)
            del self.due[callback]
            callback()
            self._settle()
        self._move_to(end)

    def until(self, condition: Callable[[], object]) -> None:
        end = self.clock() + LONGEST
        while not condition():
            assert self.clock() < end, "still not so"
            self.advance(STEP)

    def pool(self, provider: object, _lane: object) -> Any:
        """Stands in for :func:`shedlock_py.runtime.threads.worker_pool`."""
        return self._pools.setdefault(id(provider), _Pool(provider))

    def _move_to(self, moment: float) -> None:
        self.clock.advance(ceil(max(0.0, moment - self.clock()) * 1e6) / 1e6)

    def _settle(self) -> None:
        wait_until(lambda: all(pool.is_settled() for pool in self._pools.values()) and not is_reporting())


class _Pool:
    """The threads for the heartbeats of ``provider``. It knows whether each of them works or waits."""

    def __init__(self, provider: object) -> None:
        self._provider = provider
        self._mutex = threading.Lock()
        self._counts = Counter[str]()

    def submit(self, function: Callable[[], Any]) -> Any:
        self._count(queued=1)
        try:
            return worker_pool(self._provider, "heartbeats").submit(lambda: self._run(function))
        except BaseException:
            self._count(queued=-1)
            raise

    def is_settled(self) -> bool:
        with self._mutex:
            running, queued = self._counts["running"], self._counts["queued"]
        return running <= getattr(self._provider, "waiting", 0) and (not queued or running == HEARTBEAT_WORKERS)

    def _run(self, function: Callable[[], Any]) -> Any:
        self._count(queued=-1, running=1)
        try:
            return function()
        finally:
            self._count(running=-1)

    def _count(self, **changes: int) -> None:
        with self._mutex:
            self._counts.update(changes)


def is_reporting() -> bool:
    return any(thread.name == REPORT for thread in threading.enumerate())


@contextmanager
def stepped_timer(monkeypatch: pytest.MonkeyPatch, clock: FakeClock | None = None) -> Iterator[SteppedTimer]:
    """Let keep-alive in threads use this timer."""
    timer = SteppedTimer(clock or FakeClock())
    with local_clock(timer.clock, monkeypatch), monkeypatch.context() as patch:
        patch.setattr(keepalive, "timer", lambda: timer)
        patch.setattr(keepalive, "worker_pool", timer.pool)
        yield timer
