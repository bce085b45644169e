"""SIGTERM: by default it ends a process without running any ``finally``, and its leases last until they expire.

Python calls a signal handler in the main thread, in the middle of whatever runs there. The guarded tasks may need a
lock that the main thread holds, so the handler must not wait for them. It starts a thread, which waits and then sends
the signal to the main thread again. The second signal ends the process, whichever process sent it.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

from shedlock_py._process import OwningProcess, monotonic
from shedlock_py.context import ActiveLease, find_live, process_gates, running
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.errors import ConfigurationError
from shedlock_py.events import SkipReason, logger

_POLL_SECONDS = 0.01
_GREEN = ("gevent.monkey", "eventlet.patcher")
"""Modules that replace threads and their idents."""
_LATE_SECONDS = 1.0
"""How long the waiting thread's own signal may take to arrive, and how long a hanging log is waited for."""


class _Shutdown:
    wait = 0.0
    owner: OwningProcess | None = None
    """The process that is shutting down. A child that it forks is not."""
    begun_by: _Handler | None = None
    """The handler that Python called. It may call an older one of this class."""
    is_waiting = False
    """The waiting thread waits for guarded tasks."""
    is_ending = False
    """The previous handler was called, SystemExit was raised, or the interpreter ends anyway."""
    is_sending = False
    """The waiting thread's own signal may be on its way."""

    def is_here(self) -> bool:
        return self.owner is not None and self.owner.is_current()


_shutdown = _Shutdown()


def shutting_down() -> SkipReason | None:
    """The gate of a process that received SIGTERM: only what a running task needs may begin."""
    return "shutting_down" if _shutdown.is_here() and find_live() is None else None


def release_on_sigterm(wait: Duration = "20s") -> None:
    """On SIGTERM, release all leases before the process ends, so that another replica can continue at once.

    From then on, guarded tasks that would begin are skipped (``"shutting_down"``). Tasks in other threads have
    ``wait`` to finish and to release their leases. A warning names those that run longer; their leases expire, because
    the tasks may go on to the last moment. Then the former handler is called. If there is none, ``SystemExit(143)`` is
    raised in the main thread, whose own tasks and event loop end with their ``finally``. A second SIGTERM does not
    wait. Meanwhile the main thread goes on; if it ends by itself, the interpreter waits for the tasks of daemon threads
    too.

    Call it in the main thread, after frameworks have installed their own handlers. Calling it again changes ``wait``.

    :param wait: shorter than the platform's time between SIGTERM and SIGKILL (Kubernetes: 30 s).
    :raises ConfigurationError: not in the main thread, or ``wait`` is not a duration.
    """
    import atexit  # late: needed by few
    import signal  # half a millisecond

    seconds = parse_duration(wait, "wait", zero=True).total_seconds()
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError("release_on_sigterm() must be called in the main thread, as signal handlers are")
    _shutdown.wait = seconds
    if shutting_down not in process_gates:
        process_gates.append(shutting_down)
    previous = signal.getsignal(signal.SIGTERM)
    if not isinstance(previous, _Handler):
        atexit.unregister(_before_exit)  # again the first of those that were registered until now
        atexit.register(_before_exit)
        signal.signal(signal.SIGTERM, _Handler(previous))


class _Handler:
    """The handler. It runs in the middle of other code, so it must neither wait nor take a lock.

    :param previous: the one that it replaces. That may call an older one of this class, or this one again.
    """

    def __init__(self, previous: object) -> None:
        self._previous = previous
        self._frame: object = self
        """While the previous one runs: the frame that the signal interrupted. Who calls a handler passes it on."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        state = _shutdown
        if not state.is_here():
            state.is_waiting = state.is_ending = state.is_sending = False
            state.owner, state.begun_by = OwningProcess(), self
            until = monotonic() + state.wait
            if _others():
                try:
                    state.is_waiting = True
                    # threading.Thread takes a lock of its module, which the interrupted code may hold.
                    _thread.start_new_thread(_wait_and_send, (number, until, self._previous))
                    return
                except RuntimeError:  # no more threads; better a main thread that waits than tasks cut short
                    _wait_for_others(until)
                    state.is_waiting = False
        elif state.is_ending and state.is_sending and state.begun_by is self:
            return  # two signals are one: a second SystemExit would interrupt a `finally` of the main thread
        import signal  # it is loaded already

        state.is_ending = True
        if callable(self._previous) and frame is not self._frame:
            before, self._frame = self._frame, frame
            try:
                self._previous(number, frame)
            finally:
                self._frame = before
        elif self._previous is not signal.SIG_IGN:
            raise SystemExit(128 + number)


def _wait_and_send(number: int, until: float, previous: object) -> None:
    """The waiting thread."""
    import signal

    state = _shutdown
    try:
        _wait_for_others(until)
        # The application may have replaced this handler. The default one would end the process without any `finally`.
        is_handled = callable(signal.getsignal(number))
        # A handler that ``loop.add_signal_handler`` installed: the first signal has already notified the event loop.
        origins = (type(getattr(previous, "__self__", None)).__module__, getattr(previous, "__module__", ""))
        is_event_loops = any(str(name).partition(".")[0] in ("asyncio", "uvloop") for name in origins)
        if state.is_ending or not is_handled or is_event_loops:
            return
        state.is_sending = True
        if any(name in sys.modules for name in _GREEN):  # all run in the main thread, which has another ident there
            os.kill(os.getpid(), number)
        elif hasattr(signal, "pthread_kill"):
            signal.pthread_kill(_main_thread(), number)  # to the main thread, so that it interrupts a system call there
        else:
            signal.raise_signal(number)
    finally:
        state.is_waiting = False
    time.sleep(_LATE_SECONDS)
    state.is_sending = False


def _before_exit() -> None:
    """Wait for the tasks of daemon threads if the main thread has ended by itself."""
    state = _shutdown
    if not state.is_here() or state.is_ending:
        return
    state.is_ending = True
    with suppress(SystemExit):  # a second SIGTERM
        while state.is_waiting:
            time.sleep(_POLL_SECONDS)


def _main_thread() -> int:
    return threading.main_thread().ident or 0


def _others() -> list[ActiveLease]:
    """The guarded tasks of this process that do not run in the main thread."""
    main = _main_thread()
    return [active for active in list(running) if active.owner.is_current() and active.thread != main]


def _wait_for_others(until: float) -> None:
    while others := _others():
        if monotonic() >= until:
            _warn(", ".join(sorted({active.lease.name for active in others})))
            return
        time.sleep(_POLL_SECONDS)


def _warn(names: str) -> None:
    """Log a warning in a thread, because the log itself may hang."""
    written = threading.Event()

    def write() -> None:
        logger.warning("SIGTERM: still running, their leases are left to expire: %s", names)
        written.set()

    try:
        _thread.start_new_thread(write, ())
    except RuntimeError:
        write()
    written.wait(_LATE_SECONDS)
