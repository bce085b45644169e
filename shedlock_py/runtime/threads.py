"""Daemon threads: one timer per process, and worker pools.

:class:`Timer` is one thread that runs callbacks at given moments: heartbeats, and the time limits of connections. It
never waits for a store. :class:`WorkerPool` runs functions in a few threads. :func:`worker_pool` returns the pool of
one provider and one lane. So a hanging store does not delay other stores, and an acquire does not delay a heartbeat or
a release.

All threads are daemons, so a hanging store does not keep the interpreter from ending. A forked child starts its own
threads.

Python 3.12 and later start no thread while ``atexit`` handlers run. Some handlers wait for jobs, which must release
their leases, and a release may need the timer for its time limit. So the timer keeps its thread.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import cache
from math import inf
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from shedlock_py.errors import as_exception
from shedlock_py.events import logger
from shedlock_py.runtime.process import PerProcess, monotonic

T = TypeVar("T")

IDLE_SECONDS = 5.0
"""A worker thread ends after this time without work."""
EXIT_SECONDS = 2.0
"""How long the interpreter's exit waits for :func:`finish_at_exit`."""
RETRY_SECONDS = 1.0
"""The timer runs a failed callback again after this time."""
LONGEST_SLEEP = 10.0
"""Seconds. A sleep uses a clock that stops while the system is suspended; the clock of leases does not stop."""


# Worker pools


class _PoolState:
    """The queue and the workers of a pool in one process. ``mutex`` guards all of it."""

    def __init__(self) -> None:
        # Use `with` on this lock, not on the condition. The condition's __enter__ is Python code: if a signal handler
        # raises an exception there, the lock stays locked for ever. (On Python 3.14 any lock can stay locked:
        # python/cpython#148874.)
        self.mutex = threading.RLock()
        self.changed = threading.Condition(self.mutex)
        self.queue: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self.workers: set[threading.Thread] = set()
        self.idle = 0


class WorkerPool:
    """At most ``max_workers`` daemon threads that run functions in the order of submission.

    Threads start on demand and end after :data:`IDLE_SECONDS` without work. A function's exception never ends a thread.
    In a forked child the pool has its own threads; functions that the parent queued run in the parent.
    """

    def __init__(self, max_workers: int, name: str, user: object = None) -> None:
        """:param name: the name of its threads.
        :param user: the object that the pool serves. It lives as long as the pool.
        """
        self._max_workers = max_workers
        self._name = name
        self._user = user
        self._state: PerProcess[_PoolState] = PerProcess(_PoolState)

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run ``function`` in a worker. The future gets its result or exception, even a ``BaseException``.

        If the system refuses another thread, an existing worker runs it.

        :raises RuntimeError: the system refuses a thread, and no worker exists; ``function`` will not run.
        """
        future: Future[T] = Future()
        state = self._state.get()
        with state.mutex:
            state.queue.append((function, future))
            if state.idle >= len(state.queue):
                state.changed.notify()
            elif len(state.workers) < self._max_workers:
                worker = threading.Thread(target=self._work, args=(state,), name=self._name, daemon=True)
                state.workers.add(worker)
                try:
                    worker.start()  # it waits for the lock, so it runs only after its start has succeeded
                except BaseException as error:  # even Ctrl-C: the caller gets no future, so nothing may run
                    state.workers.discard(worker)  # if Ctrl-C interrupted the start, the thread ends at once
                    if not state.workers or not isinstance(error, RuntimeError):
                        state.queue.remove((function, future))
                        raise
        return future

    def _work(self, state: _PoolState) -> None:
        is_needed = True
        while is_needed:
            try:
                is_needed = self._run_next(state)
            except BaseException:  # from a future's callback, or from the wait (MemoryError)
                logger.exception("a worker thread goes on after an unexpected error")

    def _run_next(self, state: _PoolState) -> bool:
        """Wait for a function and run it. Return False if this worker ends."""
        worker = threading.current_thread()
        with state.mutex:
            while worker in state.workers and not state.queue:
                state.idle += 1
                try:
                    was_notified = state.changed.wait(IDLE_SECONDS)
                finally:
                    state.idle -= 1
                if not was_notified and not state.queue:
                    state.workers.discard(worker)
            if worker not in state.workers:
                return False
            function, future = state.queue.popleft()
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(function())
        except BaseException as error:  # even SystemExit, which would end the worker silently
            if future.done():
                raise  # a callback of the future raised it
            future.set_exception(error)
        return True


# The timer


class Timer:
    """One thread that runs callbacks at given moments. A callback must not wait for anything.

    The thread starts with the first callback, and stays.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # use `with` on it, not on the condition: see _PoolState
        self._changed = threading.Condition(self._mutex)
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0
        self._due: dict[Callable[[], object], float] = {}

    def schedule(self, callback: Callable[[], object], when: float) -> None:
        """Run ``callback`` at ``when`` on the monotonic clock. This replaces the callback's earlier moment.

        :raises RuntimeError: the system refuses a thread. The callback stays scheduled: the next call of this method,
            for any callback, tries again.
        """
        with self._mutex:
            self._due[callback] = when
            if self._thread is not None:
                if when < self._wakes_at:
                    self._changed.notify()
                return
            self._thread = threading.Thread(target=self._run, name="shedlock-timer", daemon=True)
            try:
                self._thread.start()  # it waits for the lock, so it runs only after its start has succeeded
            except BaseException:
                self._thread = None  # if Ctrl-C interrupted the start, the thread ends at once
                raise

    def cancel(self, callback: Callable[[], object]) -> None:
        """Do not run ``callback``, unless it is already running."""
        with self._mutex:
            self._due.pop(callback, None)

    def _run(self) -> None:
        while True:
            callback: Callable[[], object] | None = None
            try:
                callback = self._next_callback()
                if callback is None:
                    return
                callback()
            except BaseException:  # even from the wait: without this thread no lease is kept alive
                logger.exception("the timer goes on after an unexpected error")
                if callback is not None:
                    with self._mutex:
                        self._due.setdefault(callback, monotonic() + RETRY_SECONDS)
            del callback

    def _next_callback(self) -> Callable[[], object] | None:
        """Wait for the next callback. Return None to end this thread, if Ctrl-C interrupted its start."""
        with self._mutex:
            while self._thread is threading.current_thread():
                when = min(self._due.values(), default=inf)
                seconds = when - monotonic()
                if seconds <= 0:
                    callback = min(self._due, key=self._due.__getitem__)
                    del self._due[callback]
                    return callback
                self._wakes_at = when
                self._changed.wait(min(seconds, LONGEST_SLEEP))
        return None


timer = PerProcess(Timer).get
"""The timer of this process."""

# The pools of the providers

Lane = Literal["heartbeats", "requests"]
"""A pool of a provider: "heartbeats" for extending and releasing, "requests" for everything else."""

REQUEST_WORKERS = 8
HEARTBEAT_WORKERS = 4
HEARTBEAT_VARIABLE = "SHEDLOCK_HEARTBEAT_THREADS"
"""The environment variable that raises :data:`HEARTBEAT_WORKERS`."""

# A pool lives while code uses it or one of its workers runs. It keeps the provider alive, and so the provider's id.
_pools: PerProcess[WeakValueDictionary[tuple[int, Lane], WorkerPool]] = PerProcess(WeakValueDictionary)


def worker_pool(provider: object, lane: Lane) -> WorkerPool:
    """Return the pool of ``provider`` for ``lane``. All users of this provider object in this process share it."""
    pools, key = _pools.get(), (id(provider), lane)
    pool = pools.get(key)
    if pool is None:
        size = REQUEST_WORKERS if lane == "requests" else _heartbeat_workers(os.environ.get(HEARTBEAT_VARIABLE, ""))
        pool = pools.setdefault(key, WorkerPool(size, f"shedlock-{lane}", provider))
    return pool


@cache  # warn once, although an idle pool is made again
def _heartbeat_workers(configured: str) -> int:
    configured = configured.strip()
    if configured.isdecimal() and int(configured):
        return int(configured)
    if configured:
        logger.warning("%s must be a number of threads, not %r: %s", HEARTBEAT_VARIABLE, configured, HEARTBEAT_WORKERS)
    return HEARTBEAT_WORKERS


def request_in_worker(provider: object, request: Callable[[], T], seconds: float, pending: T) -> T:
    """Return the result of ``request``, which calls ``provider``, or ``pending`` if it has no reply in ``seconds``.

    :raises RuntimeError: the system refuses a thread.
    """
    future = worker_pool(provider, "heartbeats").submit(request)
    if not wait({future}, seconds).done:
        return pending
    error = future.exception()
    if error is not None:
        raise as_exception(error, "request")
    return future.result()


_unfinished: PerProcess[set[Future[Any]]] = PerProcess(set)
_is_registered = False


def finish_at_exit(future: Future[Any]) -> None:
    """Let a normal interpreter exit wait for ``future`` and all others, for :data:`EXIT_SECONDS` together."""
    global _is_registered
    if not _is_registered:
        # Not at import: handlers run in reverse order, so the application's handlers, which close its clients, come
        # later.
        _is_registered = True
        atexit.register(_finish)
    unfinished = _unfinished.get()
    unfinished.add(future)
    future.add_done_callback(unfinished.discard)


def _finish() -> None:
    if unfinished := set(_unfinished.get()):
        wait(unfinished, EXIT_SECONDS)
