"""Daemon threads of one process: a timer, and worker pools.

:class:`WorkerPool` runs functions in a few daemon threads. :func:`worker_pool` returns the pool of one provider and one
lane, so that a store that hangs delays nothing on another store, and an acquire delays no heartbeat and no release.
:class:`Timer` is one thread that calls back at given moments; it never waits for a store.

All of them are daemons: a store that hangs never keeps the interpreter from ending. A forked child starts its own.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar
from weakref import WeakValueDictionary

from shedlock_py._clock import monotonic
from shedlock_py.errors import ProviderError
from shedlock_py.events import logger

if TYPE_CHECKING:
    from concurrent.futures import Future  # late elsewhere: needed by few programs

T = TypeVar("T")

IDLE_SECONDS = 5.0
"""After so long without work a worker ends."""
EXIT_SECONDS = 2.0
"""For so long a normal interpreter exit waits for :func:`finish_at_exit`."""
RETRY_SECONDS = 1.0
"""The timer tries a target that failed again after this."""


# Worker pools


class _Call(Generic[T]):
    """A function that waits for a worker, and the future of its result."""

    __slots__ = ("function", "future")

    def __init__(self, function: Callable[[], T], future: Future[T]) -> None:
        self.function = function
        self.future = future

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.function()
        except BaseException as error:  # SystemExit too: it ends neither the worker nor, unnoticed, the work
            self.fail(error)
        else:
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _Crew:
    """The workers and the queue of a pool in one process. ``changed`` guards everything."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.queue: deque[_Call[Any]] = deque()
        self.starting: set[object] = set()
        self.workers = 0
        self.idle = 0
        self.reserved = 0

    @property
    def size(self) -> int:
        return len(self.starting) + self.workers


class WorkerPool:
    """At most ``max_workers`` daemon threads that run functions in the order of submission.

    Workers start on demand and end after :data:`IDLE_SECONDS` without work. A function that raises, whatever it raises,
    ends no worker. The pool survives a fork: the child has an empty queue and starts workers of its own, and functions
    that the parent has queued run in the parent only.
    """

    def __init__(self, max_workers: int, name: str) -> None:
        """:param name: the name of its threads."""
        self._max_workers = max_workers
        self._name = name
        self._crews: dict[int, _Crew] = {}  # by process id: threads and held locks do not survive a fork

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run ``function`` in a worker; the future gets what it returns or raises, a ``BaseException`` included.

        If no further thread can be started, the workers that there are run it, and the next submit tries again.

        :raises RuntimeError: no thread could be started and there is no worker; ``function`` will not run.
        """
        from concurrent.futures import Future

        call = _Call(function, Future())
        crew = self._crew()
        with crew.changed:
            crew.queue.append(call)
            if crew.idle >= len(crew.queue):
                crew.changed.notify()
                return call.future
            if crew.size >= self._max_workers:
                return call.future
            try:
                self._start_worker(crew)
            except BaseException as error:  # also Ctrl-C: the caller gets no future, so nothing may run
                if not crew.size or not isinstance(error, RuntimeError):
                    crew.queue.remove(call)
                    raise
        return call.future

    def reserve(self) -> None:
        """Start a worker, if there is none, and keep one until :meth:`unreserve`.

        Later submits then find a worker, even if the process cannot start threads any more: at a limit of the
        operating system, or on Python 3.12.0 and 3.12.1 once the main thread has ended. If no worker can be started
        now, the next submit tries again.
        """
        crew = self._crew()
        with crew.changed:
            crew.reserved += 1
            if not crew.size:
                try:
                    self._start_worker(crew)
                except RuntimeError as error:
                    logger.warning("no thread for heartbeats could be started, which is tried again: %s", error)

    def unreserve(self) -> None:
        """Undo one :meth:`reserve`, which this process has called."""
        crew = self._crew()
        with crew.changed:
            crew.reserved -= 1

    def _crew(self) -> _Crew:
        crew = self._crews.get(os.getpid())
        return crew if crew is not None else self._crews.setdefault(os.getpid(), _Crew())

    def _start_worker(self, crew: _Crew) -> None:
        """Called with the lock held, so that the worker does not begin before its start has succeeded."""
        start = object()
        crew.starting.add(start)
        try:
            threading.Thread(target=self._work, args=(crew, start), name=self._name, daemon=True).start()
        except BaseException:
            crew.starting.discard(start)  # should the thread have begun all the same, it ends at once
            raise

    def _work(self, crew: _Crew, start: object) -> None:
        with crew.changed:
            if start not in crew.starting:
                return
            crew.starting.discard(start)
            crew.workers += 1
        while True:
            call: _Call[Any] | None = None
            try:
                call = self._next_call(crew)
                if call is None:
                    return
                call.run()
            except BaseException as error:  # raised into this thread from outside, or by a callback of the future
                logger.exception("a worker thread goes on after an unexpected error")
                if call is not None:
                    call.fail(error)
            del call  # with it goes what the function refers to

    def _next_call(self, crew: _Crew) -> _Call[Any] | None:
        """The next call; None: this worker has ended, and is not counted any more."""
        with crew.changed:
            while not crew.queue:
                crew.idle += 1
                try:
                    was_notified = crew.changed.wait(IDLE_SECONDS)
                finally:
                    crew.idle -= 1
                is_reserved = crew.reserved > 0 and crew.size == 1
                if not was_notified and not crew.queue and not is_reserved:
                    crew.workers -= 1
                    return None
            return crew.queue.popleft()


# The timer


class TimerTarget(Protocol):
    """What a timer calls."""

    def wake(self) -> None:
        """Called in the timer's thread: must not wait for anything."""


class Timer:
    """One thread that calls targets at given moments."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: object = None  # a token of the running thread
        self._due: dict[TimerTarget, float] = {}

    def schedule(self, target: TimerTarget, when: float) -> None:
        """Call ``target.wake()`` at ``when`` of the monotonic clock; a later call replaces an earlier one.

        :raises RuntimeError: the timer's thread could not be started. The target stays scheduled: the next call of
            this method, for any target, tries again.
        """
        with self._changed:
            self._due[target] = when
            if self._thread is None:
                self._start()
            elif when <= min(self._due.values()):
                self._changed.notify()

    def cancel(self, target: TimerTarget) -> None:
        """Do not call ``target``, unless that has begun."""
        with self._changed:
            self._due.pop(target, None)

    def _start(self) -> None:
        """Called with the lock held, so that the thread does not begin before its start has succeeded."""
        self._thread = thread = object()
        try:
            threading.Thread(target=self._run, args=(thread,), name="shedlock-timer", daemon=True).start()
        except BaseException:
            self._thread = None  # should the thread have begun all the same, it ends at once
            raise

    def _run(self, thread: object) -> None:
        while True:
            target: TimerTarget | None = None
            try:
                target = self._next_due(thread)
                if target is None:
                    return
                target.wake()
            except BaseException:  # of any kind: without this thread no lease is kept alive
                logger.exception("the timer goes on after an unexpected error")
                if target is not None:
                    with self._changed:
                        self._due.setdefault(target, monotonic() + RETRY_SECONDS)
            del target

    def _next_due(self, thread: object) -> TimerTarget | None:
        """Wait for the next target; None: there is none, and this thread has ended."""
        with self._changed:
            while self._thread is thread:
                if not self._due:
                    self._thread = None
                    return None
                target, when = min(self._due.items(), key=lambda due: due[1])
                seconds = when - monotonic()
                if seconds <= 0:
                    del self._due[target]
                    return target
                self._changed.wait(seconds)
        return None


# Those of this process

Lane = Literal["heartbeats", "requests"]
"""Which pool of a provider: "heartbeats" for extending and releasing, "requests" for everything else."""

REQUEST_WORKERS = 8
HEARTBEAT_WORKERS = 4
HEARTBEAT_VARIABLE = "SHEDLOCK_HEARTBEAT_THREADS"
"""The environment variable that raises :data:`HEARTBEAT_WORKERS`."""


class _Process:
    """The timer and the pools of one process."""

    def __init__(self) -> None:
        self.timer = Timer()
        self.lock = threading.RLock()
        # A pool lives as long as somebody uses it, or one of its workers runs; so do the provider and its id.
        self.pools: WeakValueDictionary[tuple[int, Lane], WorkerPool] = WeakValueDictionary()
        self.unfinished: set[Future[Any]] = set()


_processes: dict[int, _Process] = {}  # by process id: nothing of this survives a fork


def _this_process() -> _Process:
    process = _processes.get(os.getpid())
    return process if process is not None else _processes.setdefault(os.getpid(), _Process())


def timer() -> Timer:
    """The timer of this process."""
    return _this_process().timer


def worker_pool(provider: object, lane: Lane) -> WorkerPool:
    """The pool of ``provider`` for ``lane``: one for all that use this provider object in this process."""
    process = _this_process()
    key = (id(provider), lane)
    with process.lock:
        pool = process.pools.get(key)
        if pool is None:
            pool = process.pools[key] = WorkerPool(_workers_of(lane), f"shedlock-{lane}")
        return pool


def _workers_of(lane: Lane) -> int:
    if lane == "requests":
        return REQUEST_WORKERS
    configured = os.environ.get(HEARTBEAT_VARIABLE, "").strip()
    if configured.isdecimal() and int(configured):
        return int(configured)
    if configured:
        logger.warning("%s must be a number of threads, not %r: %s", HEARTBEAT_VARIABLE, configured, HEARTBEAT_WORKERS)
    return HEARTBEAT_WORKERS


def finish_at_exit(future: Future[Any]) -> None:
    """Let a normal interpreter exit wait for ``future``, with all others for :data:`EXIT_SECONDS` at most."""
    global _is_registered
    if not _is_registered:
        import atexit

        _is_registered = True
        atexit.register(_finish)
    unfinished = _this_process().unfinished
    unfinished.add(future)
    future.add_done_callback(unfinished.discard)


_is_registered = False


def _finish() -> None:
    from concurrent.futures import wait

    wait(set(_this_process().unfinished), EXIT_SECONDS)


# Elections


def ask_in_thread(provider: object, request: Callable[[], T], seconds: float, otherwise: T) -> T:
    """What ``request``, which calls ``provider``, returns or raises; ``otherwise`` if there is no reply in ``seconds``.

    :raises RuntimeError: no thread could be started.
    """
    future = worker_pool(provider, "heartbeats").submit(request)
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():
            raise  # the store's own
        return otherwise
    except BaseException as error:
        if isinstance(error, Exception) or not future.done():
            raise  # the store's own, or Ctrl-C while this thread waited
        raise as_exception(error, "request") from error


def as_exception(error: BaseException, operation: str, lock_name: str | None = None) -> Exception:
    """``error``; or, if it would end a thread, what reports it instead (``sys.exit()`` in a driver's event hook)."""
    if isinstance(error, Exception):
        return error
    failure = ProviderError(f"{operation} raised {error!r}", operation=operation, lock_name=lock_name)
    failure.__cause__ = error
    return failure


# Signals


def is_from_signal(error: BaseException) -> bool:
    """Whether ``error``, of a callback, is meant for the process: a signal's handler raised it, or may have.

    Python runs handlers in the main thread, in the middle of whatever runs there. Each ``KeyboardInterrupt`` there
    counts as Ctrl-C; anything else counts if a function that is installed as a handler is in its traceback.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if isinstance(error, KeyboardInterrupt):
        return True
    import signal  # late: half a millisecond

    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: Any) -> object:
    while isinstance(handler, partial):
        handler = handler.func
    if isinstance(handler, int) or not callable(handler):
        return None  # SIG_DFL, SIG_IGN, or installed by C
    function = handler if hasattr(handler, "__code__") or hasattr(handler, "__func__") else type(handler).__call__
    return getattr(getattr(function, "__func__", function), "__code__", None)
