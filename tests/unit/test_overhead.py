"""What a guard costs, counted in calls: the same number on every machine, unlike a time.

The bounds are a little above what it was when they were written. Whoever needs more raises them, knowing.
"""

import gc
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from shedlock_py import InMemoryLockProvider, LockRequest, configure, hold, scheduler_lock


def calls_of(work: Callable[[], Any]) -> int:
    """How many functions, of Python and of C, one call of ``work`` calls; after a first one, which imports."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        # A clock read is one only where the clock is a function of C by itself: not on Linux.
        calls += event == "call" or (event == "c_call" and argument is not time.monotonic)

    work()
    before = sys.getprofile()
    gc.disable()  # what other tests have left is finalized at any moment
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls - 2  # `work` itself, and the end of counting


@pytest.fixture
def job() -> Any:
    @scheduler_lock("job", lock_at_most_for="10m")
    def job() -> int:
        return 7

    return job


def test_the_count_counts() -> None:
    assert calls_of(lambda: len(str(7))) == 1  # a type is not called as functions are


def test_a_decorated_call(job: Any) -> None:
    configure(provider=InMemoryLockProvider())
    assert calls_of(job) <= 93


def test_a_skip(job: Any) -> None:
    provider = InMemoryLockProvider()
    configure(provider=provider)
    provider.acquire(LockRequest("job", "10m"))
    assert calls_of(job) <= 38


def test_a_block() -> None:
    provider = InMemoryLockProvider()

    def block() -> None:
        with hold("job", lock_at_most_for="10m", provider=provider):
            pass

    assert calls_of(block) <= 108


def test_the_store_alone() -> None:
    provider, request = InMemoryLockProvider(), LockRequest("job", "10m")

    def cycle() -> None:
        lease = provider.acquire(request)
        assert lease is not None
        assert provider.release(lease)

    assert calls_of(cycle) <= 30


def test_a_request() -> None:
    assert calls_of(lambda: LockRequest("job", "10m")) <= 40
