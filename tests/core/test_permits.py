"""The permits in front of a pool: never too many, in time, and none is lost to a signal handler."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from shedlock_py._process import monotonic
from shedlock_py.providers.kit import Permits, TimedOut
from tests.support.signals import raised_by
from tests.support.timing import BUSY

COUNT = 3


class Interrupted(Exception):
    """What a job's alarm raises."""


def all_are_free(permits: Permits) -> bool:
    """Whether as many threads as there are permits get one at the same time."""
    together, failed = threading.Barrier(COUNT, timeout=30), []

    def take() -> None:
        try:
            with permits.one_until(monotonic() + 10):
                together.wait()
        except (TimedOut, threading.BrokenBarrierError) as error:
            failed.append(error)

    threads = [threading.Thread(target=take) for _ in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return not failed


def test_never_more_than_there_are_and_nobody_waits_too_long() -> None:
    permits, mutex = Permits(COUNT), threading.Lock()
    active, peak, longest = 0, 0, 0.0
    until = time.monotonic() + 1

    def work(seed: int) -> None:
        nonlocal active, peak, longest
        randomness = random.Random(seed)
        while time.monotonic() < until:
            seconds, started = randomness.uniform(0.005, 0.1), monotonic()
            try:
                with permits.one_until(started + seconds):
                    with mutex:
                        active += 1
                        peak = max(peak, active)
                    threading.Event().wait(randomness.uniform(0, 0.01))
                    with mutex:
                        active -= 1
            except TimedOut:
                with mutex:
                    longest = max(longest, monotonic() - started - seconds)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert peak == COUNT
    assert longest < BUSY
    assert all_are_free(permits)


@pytest.fixture
def _alarm() -> Iterator[None]:
    with raised_by(signal.SIGALRM, Interrupted):
        yield
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.mark.usefixtures("_alarm")
def test_exceptions_of_a_signal_handler_lose_none() -> None:
    permits, randomness = Permits(COUNT), random.Random(1)
    for _ in range(1000):
        try:
            signal.setitimer(signal.ITIMER_REAL, randomness.uniform(0.00001, 0.0003))
            while True:
                with permits.one_until(monotonic() + 5), permits.one_until(monotonic() + 5):
                    pass
        except Interrupted:
            pass
    assert all_are_free(permits)
