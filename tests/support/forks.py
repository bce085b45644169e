"""Forked processes, and what they can run."""

import asyncio
import ctypes
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support import forked


def prepare_for_c_forks() -> None:
    """Call this first in a process that calls :func:`c_fork`, before it has threads.

    If another thread has requested the GIL at the moment of the fork, the child waits for ever to hand it over: that
    thread does not exist there. A thread requests it after the switch interval.
    """
    sys.setswitchinterval(3600)


def c_fork() -> int:
    """As uWSGI makes its workers: nobody tells Python of it. For :mod:`tests.support.forked_by_c`."""
    pid: int = ctypes.PyDLL(None).fork()
    return pid


def in_a_loop_of_its_own(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run `work` on a new event loop in a new thread: a child that was forked inside of a loop has no other way."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(work())).result(30)


def check_fork_by_c(ways: str, url: str, name: str) -> None:
    """:param ways: of using a provider in parent and child, in :mod:`tests.support.forked_by_c`."""
    done = forked.run(["-m", "tests.support.forked_by_c", ways, url, name], timeout=100)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
