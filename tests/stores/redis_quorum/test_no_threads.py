"""Without a new thread, a quorum sends requests to its servers in sequence."""

from __future__ import annotations

import signal
from concurrent.futures import Future
from typing import Any

import pytest

from shedlock_py.providers.redis.quorum.broadcast import _run_here
from shedlock_py.runtime.threads import WorkerPool
from tests.stores.redis_quorum.quorums import Quorum, acquired
from tests.support.signals import TooLong, raised_by


def refuse(*_: object) -> Future[Any]:
    raise RuntimeError("can't start new thread")


def test_a_lock_is_acquired_and_released_without_threads(quorum: Quorum, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = quorum.provider()
    monkeypatch.setattr(WorkerPool, "submit", refuse)
    lease = acquired(provider)
    assert provider.release(lease)


def test_an_exception_of_a_signal_handler_is_no_failure_of_a_server() -> None:
    with raised_by(signal.SIGUSR1, TooLong), pytest.raises(TooLong):
        _run_here(lambda: signal.raise_signal(signal.SIGUSR1), Future())
