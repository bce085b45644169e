"""Waiting for a condition, with a deadline instead of a sleep of the right length."""

import asyncio
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], *, timeout: float = 10.0, what: str = "the condition") -> None:
    """Return as soon as `condition()` is true; fail after `timeout` seconds, naming `what` was waited for."""
    began = time.monotonic()
    while not condition():
        if (waited := time.monotonic() - began) >= timeout:
            raise AssertionError(f"{what}: still not so after {timeout:g} s")
        time.sleep(pause_after(waited))


def pause_after(waited: float) -> float:
    """Seconds to sleep before the next check: up to 0.1 s, to leave the processor to other tests."""
    return min(0.005 + waited / 20, 0.1)


def let_pass(seconds: float) -> None:
    """For faults that last so long; a test that waits for something says what."""
    time.sleep(seconds)


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """:func:`wait_until` on an event loop."""
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (tests poll)
            await asyncio.sleep(pause_after(time.monotonic() - began))
