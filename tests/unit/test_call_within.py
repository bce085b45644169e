"""The kit's limit for calls that no driver can limit."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from shedlock_py._threads import WorkerPool
from shedlock_py.providers.kit import TimedOut, call_within
from tests.services.polling import wait_until


class Interrupted(Exception):
    """What a signal handler raises."""


class Exhausted(WorkerPool):
    """No thread can be started, as at a container's limit, or while the interpreter ends."""

    def __init__(self) -> None:
        super().__init__(1, "none")

    def submit(self, function: Any) -> Future[Any]:
        raise RuntimeError("can't start new thread")


def test_without_a_thread_it_is_called_without_the_limit() -> None:
    unused: list[int] = []
    assert call_within(Exhausted(), 1, "a connection", threading.get_ident, unused.append) == threading.get_ident()
    assert unused == []


def test_a_result_that_comes_too_late_is_discarded() -> None:
    go_on, discarded = threading.Event(), list[str]()

    def connect() -> str:
        go_on.wait(30)
        return "late"

    with pytest.raises(TimedOut, match="a connection"):
        call_within(WorkerPool(1, "test"), 0.01, "a connection", connect, discarded.append)
    go_on.set()
    wait_until(lambda: discarded == ["late"], what="discarded")


def test_so_is_that_of_a_caller_whom_a_signal_interrupted() -> None:
    go_on, discarded, caller = threading.Event(), list[str](), threading.get_ident()

    def connect() -> str:
        signal.pthread_kill(caller, signal.SIGALRM)
        go_on.wait(30)
        return "late"

    def interrupt(*_: object) -> None:
        raise Interrupted

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupted):
            call_within(WorkerPool(1, "test"), 30, "a connection", connect, discarded.append)
    finally:
        signal.signal(signal.SIGALRM, former)
    go_on.set()
    wait_until(lambda: discarded == ["late"], what="discarded")
