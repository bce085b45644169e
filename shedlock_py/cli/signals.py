"""Signals as messages: they wait until somebody reads them, so none is lost and none interrupts anything."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
OTHERS = frozenset({signal.SIGUSR1, signal.SIGUSR2})

_TO_THE_GROUP = frozenset({signal.SIGINT, signal.SIGQUIT})
_SI_KERNEL = 0x80  # Linux's si_code of what a terminal sends; kill(2) has 0


@dataclass(frozen=True)
class Signal:
    number: int
    is_from_terminal: bool
    """Sent by the terminal to its whole foreground process group, as Ctrl-C is. (SIGHUP, when the terminal is closed,
    may come to the session's leader alone.)"""


def listen(heard: Callable[[Signal], None]) -> Set[int]:
    """From now on, ``heard`` gets the signals of this process, SIGCHLD too, in another thread; none has its own effect.

    Call it before there are other threads: they inherit the mask. Signals that are ignored, as under nohup(1), stay so.

    :returns: the signal mask before, which a child needs.
    """
    numbers = {number for number in ENDING | OTHERS if signal.getsignal(number) is not signal.SIG_IGN}
    # With a handler it is not ignored, whatever was inherited; no handler is ever called, because all are blocked.
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*numbers, signal.SIGCHLD})
    threading.Thread(
        target=_wait, args=({*numbers, signal.SIGCHLD}, heard), name="shedlock-signals", daemon=True
    ).start()
    return before


def _wait(numbers: Iterable[int], heard: Callable[[Signal], None]) -> None:
    while True:
        heard(_next(numbers))


def _next(numbers: Iterable[int]) -> Signal:
    if sys.platform == "darwin":  # does not tell who sent it
        number = signal.sigwait(numbers)
        return Signal(number, number in _TO_THE_GROUP)
    info = signal.sigwaitinfo(numbers)
    return Signal(info.si_signo, info.si_signo in _TO_THE_GROUP and info.si_code == _SI_KERNEL)


def has_terminal() -> bool:
    """Whether this process has a controlling terminal, wherever its standard streams go."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
