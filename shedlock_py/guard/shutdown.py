"""Release leases on SIGTERM. By default SIGTERM ends a process without any ``finally``, so its leases are not released.

Python calls a signal handler in the main thread, in the middle of other code. The guarded tasks may need a lock that
the main thread holds, so the handler must not wait for them. It starts a thread, which waits and then sends the signal
to the main thread again. The second signal ends the process, whichever process sent it.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from shedlock_py.errors import ConfigurationError
from shedlock_py.events import RunMissed, SkipReason, logger
from shedlock_py.guard.context import ActiveLease, find_live, running
from shedlock_py.guard.skips import process_gates
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.runtime.process import OwningProcess, monotonic
from shedlock_py.settings.emit import emit

_POLL_SECONDS = 0.01
_GREEN = ("gevent.monkey", "eventlet.patcher")
"""Modules that replace threads and their idents."""
_LATE_SECONDS = 1.0
"""How long the waiting thread's own signal may take to arrive, and how long to wait for a log that hangs."""


class _Shutdown:
    wait = 0.0
    until = 0.0
    """When the time of the tasks is over."""
    owner: OwningProcess | None = None
    """The process that is shutting down. A forked child is not."""
    begun_by: _Handler | None = None
    """The handler that Python called. It may call an older handler of this class."""
    is_waiting = False
    """The waiting thread waits for guarded tasks."""
    is_ending = False
    """The previous handler was called, SystemExit was raised, or the interpreter ends anyway."""
    is_sending = False
    """The waiting thread's own signal may be on its way."""
    is_exiting = False
    """The interpreter ends. It waits only for threads of tasks that had their time."""

    def is_here(self) -> bool:
        return self.owner is not None and self.owner.is_current()


_shutdown = _Shutdown()


def shutting_down() -> SkipReason | None:
    """The gate of a process that received SIGTERM. Only guards inside a running task may begin."""
    return "shutting_down" if _shutdown.is_here() and find_live() is None else None


def is_shutting_down() -> bool:
    """Return whether this process received SIGTERM, after a call of :func:`release_on_sigterm`.

    A task that works on many items can end between two items.
    """
    return _shutdown.is_here()


def time_left() -> float | None:
    """Return how many seconds to wait for tasks after SIGTERM; None before SIGTERM."""
    return max(0.0, _shutdown.until - monotonic()) if _shutdown.is_here() else None


def release_on_sigterm(wait: Duration = "20s") -> None:
    """On SIGTERM, release all leases before the process ends, so that another replica can continue at once.

    From then on, new guarded tasks are skipped (``"shutting_down"``). Tasks in other threads have ``wait`` to finish
    and to release their leases. Then the previous handler is called. Without a previous handler, ``SystemExit(143)`` is
    raised in the main thread, so that its own tasks and event loop run their ``finally``. A second SIGTERM does not
    wait. Meanwhile the main thread continues. If it ends by itself, the interpreter also waits for the tasks of daemon
    threads.

    A warning names the tasks that run longer than ``wait``. The exit does not wait for them: ``shutdown()`` of a
    scheduler with a :class:`ShedLockExecutor` returns, and Python does not join their threads. Their leases are kept
    until the process ends, and then expire.

    Call it in the main thread, after frameworks have installed their own handlers. Calling it again changes ``wait``.

    :param wait: shorter than the platform's time between SIGTERM and SIGKILL (Kubernetes: 30 s).
    :raises ConfigurationError: not in the main thread, or ``wait`` is not a duration.
    """
    seconds = parse_duration(wait, "wait", zero=True).total_seconds()
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError("release_on_sigterm() must be called in the main thread, as signal handlers are")
    _shutdown.wait = seconds
    if shutting_down not in process_gates:
        process_gates.append(shutting_down)
    previous = signal.getsignal(signal.SIGTERM)
    if not isinstance(previous, _Handler):
        atexit.unregister(_before_exit)  # atexit calls the function that was registered last first
        atexit.register(_before_exit)
        signal.signal(signal.SIGTERM, _Handler(previous))


class _Handler:
    """The signal handler. It runs in the middle of other code, so it must not wait and must not take a lock.

    :param previous: the handler that it replaces. It may call an older handler of this class, or this handler again.
    """

    def __init__(self, previous: object) -> None:
        self._previous = previous
        self._frame: object = self
        """While the previous handler runs: the frame that the signal interrupted. Its caller passes this frame on."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        state = _shutdown
        if not state.is_here():
            state.is_waiting = state.is_ending = state.is_sending = state.is_exiting = False
            state.until = monotonic() + state.wait
            state.owner, state.begun_by = OwningProcess(), self
            if _others():
                try:
                    state.is_waiting = True
                    # threading.Thread takes a lock of its module, which the interrupted code may hold.
                    _thread.start_new_thread(_wait_and_send, (number, self._previous))
                    return
                except RuntimeError:  # no more threads: let the main thread wait rather than cut tasks short
                    _wait_for_others()
                    state.is_waiting = False
        elif state.is_exiting:
            if _is_joining(frame):
                _hide_end_of_joins()
                raise _EndOfJoins
            return
        elif state.begun_by is self and state.is_sending:
            if state.is_ending:
                return  # the main thread got both signals: a second SystemExit would interrupt its `finally`
        elif state.begun_by is self:
            state.until = monotonic()  # a second signal ends all waits
        state.is_ending = True
        if callable(self._previous) and frame is not self._frame:
            before, self._frame = self._frame, frame
            try:
                self._previous(number, frame)
            finally:
                self._frame = before
        elif self._previous is not signal.SIG_IGN:
            raise SystemExit(128 + number)


def _is_joining(frame: FrameType | None) -> bool:
    """Return whether ``frame``, of the main thread, belongs to the interpreter's exit, where it joins threads."""
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == threading.__name__


class _EndOfJoins(SystemExit):
    """Raised in the main thread while it joins the threads at the interpreter's exit. The exit then continues."""


def _hide_end_of_joins() -> None:
    """Keep Python from printing the exception that ends its wait."""
    former = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, _EndOfJoins):
            former(unraisable)

    sys.unraisablehook = hook


def _wait_and_send(number: int, previous: object) -> None:
    state, sentinel = _shutdown, _Sentinel()
    try:
        _wait_for_others()
        # The application may have replaced this handler. The default handler ends the process without any `finally`.
        is_handled = callable(signal.getsignal(number))
        # With a handler from ``loop.add_signal_handler``, the first signal has already notified the event loop.
        origins = (type(getattr(previous, "__self__", None)).__module__, getattr(previous, "__module__", ""))
        is_event_loops = any(str(name).partition(".")[0] in ("asyncio", "uvloop") for name in origins)
        if not (state.is_ending or is_event_loops or sentinel.has_ended()) and is_handled:
            state.is_sending = True
            _send(number)
    finally:
        state.is_waiting = False
    time.sleep(_LATE_SECONDS)
    state.is_sending = False
    if is_handled:
        _end_joins(number, sentinel)


def _send(number: int) -> None:
    """Send the signal to the main thread, so that it interrupts a system call there."""
    if _is_green():  # all green threads run in the main thread, where its ident differs
        os.kill(os.getpid(), number)
    elif hasattr(signal, "pthread_kill"):
        signal.pthread_kill(_main_thread(), number)
    else:
        signal.raise_signal(number)


class _Sentinel:
    """A thread that ends when the interpreter begins to end: the idle worker of a pool.

    Python ends idle workers before it joins the busy workers, and before it calls the handlers of ``atexit``.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        if _is_green():
            return
        with suppress(RuntimeError):  # no more threads; or the interpreter has begun to end
            from concurrent.futures import ThreadPoolExecutor  # late: it registers an exit function

            self._pool = ThreadPoolExecutor(1, "shedlock-exit")
            self._thread = self._pool.submit(threading.current_thread).result()

    def has_ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def wait(self) -> bool:
        """Wait for the end of the main thread's work. Return False if this cannot be known."""
        if self._thread is not None:
            self._thread.join()
        return self._thread is not None


def _end_joins(number: int, sentinel: _Sentinel) -> None:
    """Let the interpreter end although it joins threads of tasks that had their time.

    It ends as with daemon threads: the handlers of ``atexit`` are called, and then all threads stop.
    """
    if not sentinel.wait():
        return
    while overdue := {active.thread for active in _others()}:
        other = {thread.ident for thread in threading.enumerate() if not thread.daemon} - overdue - {_main_thread()}
        if not other:
            _report()
            _shutdown.is_exiting = True
            _send(number)
            return
        time.sleep(_POLL_SECONDS)  # wait for the application's threads


def _before_exit() -> None:
    """Wait for the tasks of daemon threads if the main thread has ended by itself."""
    state = _shutdown
    if not state.is_here():
        return
    with suppress(SystemExit):  # a second SIGTERM
        if not state.is_ending:
            state.is_ending = True
            while state.is_waiting:
                time.sleep(_POLL_SECONDS)
        if not state.is_exiting:
            _report()


def _main_thread() -> int:
    return threading.main_thread().ident or 0


def _others() -> list[ActiveLease]:
    """Return the guarded tasks of this process that do not run in the main thread."""
    main = _main_thread()
    return [active for active in list(running) if active.owner.is_current() and active.thread != main]


def _wait_for_others() -> None:
    while others := _others():
        if monotonic() >= _shutdown.until:
            _warn(", ".join(sorted({describe(active) for active in others})))
            return
        time.sleep(_POLL_SECONDS)


def _warn(names: str) -> None:
    _log(lambda: logger.warning("SIGTERM: still running, their leases are left to expire: %s", names))


def describe(active: ActiveLease) -> str:
    """Return the lock name of a guarded task, and its fire time."""
    fire_time = active.lease.fire_time
    return active.lease.name if fire_time is None else f"{active.lease.name} (of {fire_time.isoformat()})"


def _report() -> None:
    """Emit that the runs in other threads end with the process, unless another replica recovers them."""
    missed = [
        RunMissed(active.lease.name, active.lease.fire_time, "cancelled").filled_from(active.lease.template)
        for active in _others()
        if active.lease.fire_time is not None and not active.recovers
    ]

    def write() -> None:
        for event in missed:
            emit(event)

    if missed:
        _log(write)


def _log(write: Callable[[], object]) -> None:
    """Log in a thread, because the log itself may hang."""
    written = threading.Event()

    def work() -> None:
        write()
        written.set()

    try:
        _thread.start_new_thread(work, ())
    except RuntimeError:
        work()
    written.wait(_LATE_SECONDS)


def _is_green() -> bool:
    return any(name in sys.modules for name in _GREEN)
