"""Electors of both kinds with the same interface."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shedlock_py import AsyncLeaderElector, LeaderElector
from tests.support.loop_threads import EventLoopThread

real_time = pytest.mark.not_quick("waits for leases in real time; test_observed.py has virtual time")
DURATIONS: dict[str, Any] = {"lease_duration": "1500ms", "renew_deadline": "1200ms", "retry_period": "100ms"}
"""Short, because tests wait for them."""
LONG: dict[str, Any] = {"lease_duration": "1h", "renew_deadline": "50m", "retry_period": "50ms"}
"""Long durations: a leadership ends only if the test ends it."""


class LoopElector:
    """An :class:`AsyncLeaderElector` on an event loop in another thread, with the methods of :class:`LeaderElector`.

    A callback becomes a coroutine function, and runs in a thread, so that it may block.
    """

    def __init__(self, loop: EventLoopThread, provider: Any, name: str, **options: Any) -> None:
        self._loop = loop
        for option in ("on_started_leading", "on_stopped_leading", "on_new_leader"):
            if option in options:
                options[option] = in_thread(options[option])
        self.elector = AsyncLeaderElector(provider, name, **options)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.elector, name)
        if not inspect.iscoroutinefunction(attribute):
            return attribute
        return lambda *args, **kwargs: self._loop.run(attribute(*args, **kwargs))


Elector = LeaderElector | LoopElector


def in_thread(callback: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any) -> None:
        await asyncio.to_thread(callback, *args)

    return call


def in_background(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run ``work`` in a thread, and add its result to the list."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread, results
