"""Daemon threads: one timer per process, and worker pools.

:class:`Timer` is one thread that runs callbacks at given moments: heartbeats, and the time limits of connections. It
never waits for a store. :class:`WorkerPool` runs functions in a few threads. :func:`worker_pool` returns the pool of
one provider and one lane, so that a hanging store does not delay other stores, and an acquire delays neither a
heartbeat nor a release.

All threads are daemons, so a hanging store does not keep the interpreter from ending. A forked child starts its own.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar
from weakref import WeakValueDictionary

from shedlock_py._clock import monotonic
from shedlock_py._process import PerProcess
from shedlock_py.errors import as_exception
from shedlock_py.events import logger

if TYPE_CHECKING:
    from concurrent.futures import Future  # late elsewhere: few programs need it

T = TypeVar("T")

IDLE_SECONDS = 5.0
"""A worker thread ends after this time without work."""
EXIT_SECONDS = 2.0
"""The longest time for which the exit of the interpreter waits for :func:`finish_at_exit`."""
RETRY_SECONDS = 1.0
"""The timer runs a callback that failed again after this time."""


# Worker pools


class _WorkItem(Generic[T]):
    """A submitted function and the future of its result."""

    def __init__(self, function: Callable[[], T], future: Future[T]) -> None:
        self.function = function
        self.future = future

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.function()
        except BaseException as error:  # SystemExit too, which would end the worker silently
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class _PoolState:
    """The queue and the workers of a pool in one process. ``changed`` guards all of it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.queue: deque[_WorkItem[Any]] = deque()
        self.workers: set[threading.Thread] = set()
        self.idle = 0
        self.reserved = 0


class WorkerPool:
    """At most ``max_workers`` daemon threads that run functions in the order of submission.

    Threads start on demand and end after :data:`IDLE_SECONDS` without work. No exception of a function ends a thread.
    The pool works in a forked child, too, with threads of its own; functions that the parent queued run in the parent.
    """

    def __init__(self, max_workers: int, name: str, user: object = None) -> None:
        """
        :param name: the name of its threads.
        :param user: the object that the pool serves; it lives as long as the pool.
        """
        self._max_workers = max_workers
        self._name = name
        self._user = user
        self._state: PerProcess[_PoolState] = PerProcess(_PoolState)

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run ``function`` in a worker; the future gets what it returns or raises, a ``BaseException`` included.

        If the system refuses another thread, an existing worker runs it.

        :raises RuntimeError: the system refuses a thread and there is no worker; ``function`` will not run.
        """
        from concurrent.futures import Future

        item = _WorkItem(function, Future())
        state = self._state.get()
        with state.changed:
            state.queue.append(item)
            if state.idle >= len(state.queue):
                state.changed.notify()
            elif len(state.workers) < self._max_workers:
                try:
                    self._start_worker(state)
                except BaseException as error:  # also Ctrl-C: the caller gets no future, so nothing may run
                    if not state.workers or not isinstance(error, RuntimeError):
                        state.queue.remove(item)
                        raise
        return item.future

    def reserve(self) -> None:
        """Start a worker, if there is none, and keep one until :meth:`unreserve`.

        Later calls of :meth:`submit` then find a worker even if the system refuses threads: at a limit, or on Python
        3.12.0 and 3.12.1 once the main thread has ended. If no worker can be started now, the next submit tries again.
        """
        state = self._state.get()
        with state.changed:
            state.reserved += 1
            if not state.workers:
                try:
                    self._start_worker(state)
                except RuntimeError as error:
                    logger.warning("no thread for heartbeats could be started; the next heartbeat retries: %s", error)

    def unreserve(self) -> None:
        """Undo one :meth:`reserve` of this process."""
        state = self._state.get()
        with state.changed:
            state.reserved -= 1

    def _start_worker(self, state: _PoolState) -> None:
        """Start a thread. The caller holds the lock, so the thread cannot run before its start has succeeded."""
        worker = threading.Thread(target=self._work, args=(state,), name=self._name, daemon=True)
        state.workers.add(worker)
        try:
            worker.start()
        except BaseException:
            state.workers.discard(worker)  # if Ctrl-C interrupted the start, the thread ends at once
            raise

    def _work(self, state: _PoolState) -> None:
        while True:
            item: _WorkItem[Any] | None = None
            try:
                item = self._next_item(state)
                if item is None:
                    return
                item.run()
            except BaseException as error:  # of a future's callback, or of the waiting itself, such as MemoryError
                logger.exception("a worker thread goes on after an unexpected error")
                if item is not None and not item.future.done():
                    item.future.set_exception(error)
            del item  # and with it everything that the function refers to

    def _next_item(self, state: _PoolState) -> _WorkItem[Any] | None:
        """Wait for an item; None: this worker ends."""
        worker = threading.current_thread()
        with state.changed:
            while worker in state.workers:
                if state.queue:
                    return state.queue.popleft()
                state.idle += 1
                try:
                    was_notified = state.changed.wait(IDLE_SECONDS)
                finally:
                    state.idle -= 1
                is_reserved = state.reserved > 0 and len(state.workers) == 1
                if not was_notified and not state.queue and not is_reserved:
                    state.workers.discard(worker)
        return None


# The timer


class Timer:
    """One thread that runs callbacks at given moments. A callback must not wait for anything."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0
        self._due: dict[Callable[[], object], float] = {}

    def schedule(self, callback: Callable[[], object], when: float) -> None:
        """Run ``callback`` at ``when`` on the monotonic clock, and not at the moment scheduled for it before.

        :raises RuntimeError: the system refuses a thread. The callback stays scheduled: the next call of this method,
            for any callback, tries again.
        """
        with self._changed:
            self._due[callback] = when
            if self._thread is None:
                self._start()
            elif when < self._wakes_at:
                self._changed.notify()

    def cancel(self, callback: Callable[[], object]) -> None:
        """Do not run ``callback``, unless it is running already."""
        with self._changed:
            self._due.pop(callback, None)

    def _start(self) -> None:
        """Start the thread. The caller holds the lock, so the thread cannot run before its start has succeeded."""
        self._thread = threading.Thread(target=self._run, name="shedlock-timer", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._thread = None  # if Ctrl-C interrupted the start, the thread ends at once
            raise

    def _run(self) -> None:
        while True:
            callback: Callable[[], object] | None = None
            try:
                callback = self._next_callback()
                if callback is None:
                    return
                callback()
            except BaseException:  # of any kind, also of the waiting: without this thread no lease is kept alive
                logger.exception("the timer goes on after an unexpected error")
                if callback is not None:
                    with self._changed:
                        self._due.setdefault(callback, monotonic() + RETRY_SECONDS)
            del callback

    def _next_callback(self) -> Callable[[], object] | None:
        """Wait for the next callback; None: none is scheduled, and the thread ends."""
        with self._changed:
            while self._thread is threading.current_thread():
                if not self._due:
                    self._thread = None
                    break
                callback, when = min(self._due.items(), key=lambda due: due[1])
                seconds = when - monotonic()
                if seconds <= 0:
                    del self._due[callback]
                    return callback
                self._wakes_at = when
                self._changed.wait(seconds)
        return None


# The timer and the pools of this process

Lane = Literal["heartbeats", "requests"]
"""Which pool of a provider: "heartbeats" for extending and releasing, "requests" for everything else."""

REQUEST_WORKERS = 8
HEARTBEAT_WORKERS = 4
HEARTBEAT_VARIABLE = "SHEDLOCK_HEARTBEAT_THREADS"
"""The environment variable that raises :data:`HEARTBEAT_WORKERS`."""


class _ProcessThreads:
    """The timer and the pools of one process."""

    def __init__(self) -> None:
        self.timer = Timer()
        self.lock = threading.RLock()
        # A pool lives as long as something uses it or one of its workers runs; so does the provider, with its id.
        self.pools: WeakValueDictionary[tuple[int, Lane], WorkerPool] = WeakValueDictionary()
        self.unfinished: set[Future[Any]] = set()


_threads: PerProcess[_ProcessThreads] = PerProcess(_ProcessThreads)


def timer() -> Timer:
    """The timer of this process."""
    return _threads.get().timer


def worker_pool(provider: object, lane: Lane) -> WorkerPool:
    """The pool of ``provider`` for ``lane``: one per process for all users of this provider object."""
    threads, key = _threads.get(), (id(provider), lane)
    with threads.lock:
        pool = threads.pools.get(key)
        if pool is None:
            pool = threads.pools[key] = WorkerPool(_size_of(lane), f"shedlock-{lane}", provider)
        return pool


def _size_of(lane: Lane) -> int:
    if lane == "requests":
        return REQUEST_WORKERS
    configured = os.environ.get(HEARTBEAT_VARIABLE, "").strip()
    if configured.isdecimal() and int(configured):
        return int(configured)
    if configured:
        logger.warning("%s must be a number of threads, not %r: %s", HEARTBEAT_VARIABLE, configured, HEARTBEAT_WORKERS)
    return HEARTBEAT_WORKERS


def request_in_worker(provider: object, request: Callable[[], T], seconds: float, pending: T) -> T:
    """What ``request``, which calls ``provider``, returns or raises; ``pending`` if there is no reply in ``seconds``.

    :raises RuntimeError: the system refuses a thread.
    """
    future = worker_pool(provider, "heartbeats").submit(request)
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():
            raise  # the store raised it
        return pending
    except BaseException as error:
        if isinstance(error, Exception) or not future.done():
            raise  # the store raised it, or Ctrl-C interrupted this thread
        raise as_exception(error, "request") from error


def finish_at_exit(future: Future[Any]) -> None:
    """Let a normal interpreter exit wait for ``future``, and for all others, :data:`EXIT_SECONDS` at most."""
    global _is_registered
    if not _is_registered:
        import atexit

        _is_registered = True
        atexit.register(_finish)
    unfinished = _threads.get().unfinished
    unfinished.add(future)
    future.add_done_callback(unfinished.discard)


_is_registered = False


def _finish() -> None:
    from concurrent.futures import wait

    wait(set(_threads.get().unfinished), EXIT_SECONDS)
