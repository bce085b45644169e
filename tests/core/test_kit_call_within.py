"""``kit.call_within``: what nobody waits for any more is discarded."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from shedlock_py._timers import WorkerPool
from shedlock_py.providers.kit import TimedOut, call_within
from tests.support.polling import wait_until
from tests.support.signals import Interrupted, raised_by


class Exhausted(WorkerPool):
    """No thread can be started, as at a container's limit, or while the interpreter ends."""

    def submit(self, function: Any) -> Future[Any]:
        raise RuntimeError("can't start new thread")


def test_without_a_thread_it_is_called_without_the_limit() -> None:
    discarded: list[int] = []
    thread = call_within(Exhausted(1, "none"), 1, "a connection", threading.get_ident, discarded.append)
    assert (thread, discarded) == (threading.get_ident(), [])


@pytest.fixture
def _raising_handler() -> Iterator[None]:
    with raised_by(signal.SIGUSR1, Interrupted):
        yield


@pytest.mark.parametrize("end", ["time limit", "signal"])
@pytest.mark.usefixtures("_raising_handler")
def test_a_late_result_is_discarded(end: str) -> None:
    pool, begun, done = WorkerPool(1, "test"), threading.Event(), threading.Event()
    discarded: list[str] = []

    def open_late() -> str:
        begun.set()
        done.wait(30)
        return "a connection"

    def interrupt() -> None:
        begun.wait(30)
        os.kill(os.getpid(), signal.SIGUSR1)

    if end == "signal":
        threading.Thread(target=interrupt).start()
    started = time.monotonic()
    with pytest.raises(Interrupted if end == "signal" else TimedOut):
        call_within(pool, 30 if end == "signal" else 0.05, "a connection", open_late, discard=discarded.append)
    assert time.monotonic() - started < 20
    done.set()
    wait_until(lambda: discarded == ["a connection"], what="the late result discarded")
