"""Wait for a condition with a deadline, instead of a sleep of the right length."""

import asyncio
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], *, timeout: float = 10.0, what: str = "the condition") -> None:
    """Return as soon as `condition()` is true. Fail after `timeout` seconds with a message that names `what`."""
    began = time.monotonic()
    while not condition():
        if (waited := time.monotonic() - began) >= timeout:
            raise AssertionError(f"{what}: still not so after {timeout:g} s")
        time.sleep(pause_after(waited))


def pause_after(waited: float) -> float:
    """Return the seconds to sleep before the next check: up to 0.1 s, to leave the processor to other tests."""
    return min(0.005 + waited / 20, 0.1)


def let_pass(seconds: float) -> None:
    """Sleep, for a fault of this length. Use `wait_until` to wait for something."""
    time.sleep(seconds)


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (tests poll)
            await asyncio.sleep(pause_after(time.monotonic() - began))
