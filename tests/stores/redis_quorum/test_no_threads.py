"""Where no thread can be started, a quorum's servers are asked one after the other."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any

import pytest

from shedlock_py._timers import WorkerPool
from shedlock_py.providers.redis.quorum.broadcast import _run_here
from tests.stores.redis_quorum.quorums import Quorum, acquired


def refuse(*_: object) -> Future[Any]:
    raise RuntimeError("can't start new thread")


def test_a_lock_is_acquired_and_released(quorum: Quorum, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = quorum.provider()
    monkeypatch.setattr(WorkerPool, "submit", refuse)
    lease = acquired(provider)
    assert provider.release(lease)


class Stop(Exception):
    """As Celery's soft time limit."""


@pytest.fixture
def _stopped() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_stopped")
def test_an_exception_of_a_signal_handler_is_no_failure_of_a_server() -> None:
    with pytest.raises(Stop):
        _run_here(lambda: time.sleep(10), Future())
