"""SIGTERM: by default it ends a process without running any ``finally``, and its leases last until they expire."""

from __future__ import annotations

import os
import threading
import time
from types import FrameType

from shedlock_py._clock import monotonic
from shedlock_py.context import find_live, running
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.errors import ConfigurationError
from shedlock_py.events import logger

_MOMENT = 0.01


class _Shutdown:
    def __init__(self) -> None:
        self.process = 0
        """Which is shutting down; a child that it forked is not."""
        self.wait = 0.0
        self.previous: object = None


_shutdown = _Shutdown()


def refuses_work() -> bool:
    """Whether a guarded task must not begin any more. What a running one needs, it still gets."""
    # Nearly always nothing is to be shut down, which is known without asking the system.
    return _shutdown.process != 0 and _shutdown.process == os.getpid() and find_live() is None


def release_on_sigterm(wait: Duration = "20s") -> None:
    """On SIGTERM, end in order: leases are released, so that another replica goes on at once.

    Guarded tasks that would begin are skipped from then on (``"shutting_down"``). Those in other threads get ``wait``
    to end, and with them their leases; what runs longer is named in a warning, and its lease is left to expire,
    because its task may go on to the last moment. Then the handler that was there before is called, or, if there was
    none, ``SystemExit(143)`` is raised in the main thread, whose own tasks and event loop end with their ``finally``.
    A second SIGTERM does not wait.

    Call it in the main thread, after frameworks have installed their own handlers. Calling it again changes ``wait``.

    :param wait: shorter than what the platform gives between SIGTERM and SIGKILL (Kubernetes: 30 s).
    :raises ConfigurationError: not in the main thread, or no duration.
    """
    import signal  # late: half a millisecond, needed by few

    seconds = parse_duration(wait, "wait", zero=True).total_seconds()
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError("release_on_sigterm() must be called in the main thread, as signal handlers are")
    _shutdown.wait = seconds
    if signal.getsignal(signal.SIGTERM) is not _on_sigterm:
        _shutdown.previous = signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    import signal  # it is loaded already

    is_second = _shutdown.process == os.getpid()
    _shutdown.process = os.getpid()
    if not is_second:
        _wait_for_others(monotonic() + _shutdown.wait)
    previous = _shutdown.previous
    if callable(previous):
        previous(number, frame)
    elif previous is not signal.SIG_IGN:
        raise SystemExit(128 + number)


def _wait_for_others(until: float) -> None:
    here, me = os.getpid(), threading.get_ident()
    while others := [held for held in list(running) if held.process == here and held.thread != me]:
        if monotonic() >= until:
            names = ", ".join(sorted({held.lease.name for held in others}))
            logger.warning("SIGTERM: still running, their leases are left to expire: %s", names)
            return
        time.sleep(_MOMENT)
