"""Daemon threads: one that watches the clock, and a few for each store that ask it.

However many leases are kept alive, there is one thread that watches, and for each provider at most :data:`ASKERS` that
ask: a store that hangs can delay neither the watch nor what is asked of another. They never keep the interpreter from
ending, and a forked child starts its own.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

from shedlock_py._clock import monotonic

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

ASKERS = 4
_IDLE_SECONDS = 5.0


class Sleeper(Protocol):
    """What wants to be woken at some moment."""

    def wake(self) -> None:
        """Called in the thread that watches the clock: must not wait for anything."""


class Threads:
    """The threads of one process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_watching = False
        self._due: dict[Sleeper, float] = {}
        self._askers: dict[int, _Askers] = {}

    def wake(self, heart: Sleeper, when: float) -> None:
        """Call ``heart.wake()`` at ``when``, and not before."""
        with self._changed:
            self._due[heart] = when
            if not self._is_watching:
                self._is_watching = True
                threading.Thread(target=self._watch, name="shedlock-keep-alive", daemon=True).start()
            elif when <= min(self._due.values()):
                self._changed.notify()

    def forget(self, heart: Sleeper) -> None:
        with self._changed:
            self._due.pop(heart, None)

    def _watch(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._is_watching = False
                    return
                heart, when = min(self._due.items(), key=lambda due: due[1])
                seconds = when - monotonic()
                if seconds > 0:
                    self._changed.wait(seconds)
                    continue
                del self._due[heart]
            heart.wake()
            del heart

    def ask(self, store: object, work: Callable[[], None]) -> None:
        """Do ``work``, which asks ``store``, in another thread."""
        askers = self._askers.setdefault(id(store), _Askers())
        askers.submit(work)


class _Askers:
    """Up to :data:`ASKERS` threads, started when there is work and ended when there has been none for a while."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._work: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0

    def submit(self, work: Callable[[], None]) -> None:
        with self._changed:
            self._work.append(work)
            if self._idle >= len(self._work):
                self._changed.notify()
            elif self._threads < ASKERS:
                thread = threading.Thread(target=self._run, name="shedlock-heartbeat", daemon=True)
                with suppress(RuntimeError):  # Python 3.12 starts none while the interpreter ends; another may take it
                    thread.start()
                    self._threads += 1

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._work:
                    self._idle += 1
                    has_work = self._changed.wait(_IDLE_SECONDS)
                    self._idle -= 1
                    if not has_work and not self._work:
                        self._threads -= 1
                        return
                work = self._work.popleft()
            work()
            del work  # with it goes the heart


_processes: dict[int, Threads] = {}  # threads do not survive a fork: the child starts its own


def threads_here() -> Threads:
    threads = _processes.get(os.getpid())
    return threads if threads is not None else _processes.setdefault(os.getpid(), Threads())


def ask_in_thread(store: object, ask: Callable[[], T], seconds: float, otherwise: T) -> T:
    """What ``ask``, which asks ``store``, returns or raises; ``otherwise`` if that is not known after ``seconds``."""
    from concurrent.futures import Future  # late: needed by elections only

    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(ask())
        except BaseException as error:
            future.set_exception(error)

    threads_here().ask(store, work)
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():
            raise  # the store's own
        return otherwise


class WorkerPool:
    """Daemon threads that run functions. A thread for each, until the pool of helper `threads` replaces this."""

    def __init__(self, max_workers: int, name: str) -> None:
        self._name = name

    def submit(self, function: Callable[[], T]) -> Future[T]:
        from concurrent.futures import Future

        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name=self._name, daemon=True).start()
        return future
