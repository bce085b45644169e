"""Forked processes, and what they can run."""

import asyncio
import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Coroutine
from typing import Any


def python_fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork while other threads run
        return os.fork()


def c_fork() -> int:
    """As uWSGI makes its workers: nobody tells Python of it. For :mod:`tests.support.forked_by_c`."""
    pid: int = ctypes.PyDLL(None).fork()
    return pid


def in_child(work: Callable[[], object], fork: Callable[[], int] = python_fork) -> None:
    """Run `work` in a forked process; fail with its traceback."""
    reading, writing = os.pipe()
    pid = fork()
    if pid == 0:
        failure = b""
        signal.alarm(60)
        try:
            work()
            gc.collect()
        except BaseException:
            failure = traceback.format_exc().encode()
        os.write(writing, failure)
        os._exit(0)  # as a worker that is killed: nobody closes anything in order
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        failure = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert not failure, failure.decode()
    assert status == 0, "the child hung"


def in_a_loop_of_its_own(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run `work` on a new event loop in a new thread: a child that was forked inside of a loop has no other way."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert not failures


def check_fork_by_c(way: str, url: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.forked_by_c", way, url, name],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
