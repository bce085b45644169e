"""The current process: its clock, forks, values per process or event loop, and signals.

A forked child has a copy of every object of its parent, but not the parent's threads and event loops. The parent still
uses the connections. A fork in C code, as in uWSGI, calls no hook of Python. So everything here compares the process id
at each use.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio  # elsewhere imported late, because sync programs do not need it

T = TypeVar("T")

monotonic: Callable[[], float]
"""The clock of leases: seconds that never go back and do not stop while the system is suspended."""
# time.monotonic() stops while Linux or macOS is suspended. The store's clock does not stop, so the lease may end.
if sys.platform == "win32":
    # QueryPerformanceCounter(), which counts sleep (Microsoft: "Acquiring high-resolution time stamps"). Before Python
    # 3.13 time.monotonic() is GetTickCount64(), which advances in steps of 15.6 ms (python/cpython#88494). That is more
    # than the trust margin of a short lease.
    monotonic = time.perf_counter
elif sys.platform == "darwin":
    # mach_continuous_time(). time.monotonic() is mach_absolute_time() (python/cpython#86273), which stops, and
    # CLOCK_MONOTONIC can go back (erlang/otp#5825).
    monotonic = partial(time.clock_gettime, time.CLOCK_MONOTONIC_RAW)
else:
    monotonic = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic


class OwningProcess:
    """The process that creates this object. A forked child inherits the object and is not the owner."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def is_current(self) -> bool:
        return self._pid == os.getpid()


class PerProcess(Generic[T]):
    """One value for each process, made on first use.

    A child keeps its parent's values and never uses them: the garbage collector would close the parent's connections.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make  # two threads may call it at the same time for the first use; one result is kept
        self._values: dict[int, T] = {}

    def get(self) -> T:
        """Return the value of this process. Takes no lock, because a fork could leave it locked."""
        pid = os.getpid()
        value = self._values.get(pid)
        return self._values.setdefault(pid, self._make()) if value is None else value

    def pop(self) -> T | None:
        """Remove the value of this process, to close it. Return None if the process has not used it."""
        return self._values.pop(os.getpid(), None)


class PerLoop(Generic[T]):
    """One value for each running event loop of this process, made on first use."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._loops: PerProcess[dict[asyncio.AbstractEventLoop, T]] = PerProcess(dict)

    def get(self) -> T:
        """Return the value of the running event loop. Each loop adds only itself, in one atomic step."""
        import asyncio

        loops, running = self._loops.get(), asyncio.get_running_loop()
        value = loops.get(running)
        if value is None:
            for loop in [loop for loop in list(loops) if loop.is_closed()]:
                loops.pop(loop, None)
            value = loops[running] = self._make()
        return value

    def pop(self) -> T | None:
        """Remove the value of the running event loop, to close it. Return None if the loop has not used it."""
        import asyncio

        return self._loops.get().pop(asyncio.get_running_loop(), None)


def before_fork(hook: Callable[[], object]) -> None:
    """Call ``hook`` in the parent whenever Python forks. A fork in C does not call it."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
        os.register_at_fork(before=hook)


def is_from_signal(error: BaseException) -> bool:
    """Return whether a signal handler raised ``error``, or may have, so that it is meant for the process.

    Handlers run in the main thread. Each ``KeyboardInterrupt`` there counts as Ctrl-C. Any other exception counts if
    its traceback shows a function that is installed as a handler.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code not in handlers:
        traceback = traceback.tb_next
    return traceback is not None


def _code_of(handler: Any) -> object:
    while isinstance(handler, partial):
        handler = handler.func
    if isinstance(handler, int) or not callable(handler):
        return None  # SIG_DFL, SIG_IGN, or installed by C
    function = handler if hasattr(handler, "__code__") or hasattr(handler, "__func__") else type(handler).__call__
    return getattr(getattr(function, "__func__", function), "__code__", None)
