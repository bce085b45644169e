"""Forked processes, and work for them."""

import asyncio
import ctypes
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support import forked


def prepare_for_c_forks() -> None:
    """Prepare a process for :func:`c_fork`, before it has threads.

    If another thread has requested the GIL at the moment of the fork, the child waits for ever to hand it over: the
    child has no such thread. A thread requests the GIL after the switch interval.
    """
    sys.setswitchinterval(3600)


def c_fork() -> int:
    """Fork without telling Python, as uWSGI does for its workers. For :mod:`tests.support.forked_by_c`."""
    pid: int = ctypes.PyDLL(None).fork()
    return pid


def in_a_loop_of_its_own(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run `work` on a new event loop in a new thread: a child that was forked inside a loop cannot run a loop
    otherwise."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(work())).result(30)


def check_fork_by_c(ways: str, url: str, name: str) -> None:
    """:param ways: how parent and child use a provider, in :mod:`tests.support.forked_by_c`."""
    done = forked.run(["-m", "tests.support.forked_by_c", ways, url, name], timeout=100)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
