"""Signals as messages: they wait until somebody reads them, so none is lost and none interrupts anything."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Set

TO_THE_COMMAND_ALONE = frozenset({signal.SIGUSR1, signal.SIGUSR2})
"""They end processes that do not know them, such as other members of the command's process group."""

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
_IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
_HARMLESS = {signal.SIGURG, signal.SIGWINCH, *(getattr(signal, name) for name in ("SIGINFO",) if hasattr(signal, name))}
_OF_JOB_CONTROL = {signal.SIGTSTP, signal.SIGCONT, signal.SIGTTIN, signal.SIGTTOU}

ENDING: Set[int] = frozenset(
    int(number)
    for number in signal.valid_signals()
    - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
    - _FAULTS
    - _IGNORED_BY_PYTHON
    - _HARMLESS
    - _OF_JOB_CONTROL
    - TO_THE_COMMAND_ALONE
)
"""All that would end this process and can be caught: SIGTERM, Ctrl-C, SIGALRM, SIGXCPU, real-time signals, …"""


def listen(heard: Callable[[int], None]) -> Set[int]:
    """From now on, ``heard`` gets the signals of this process in another thread; none has its own effect.

    Those of ``ENDING``, SIGUSR1 and SIGUSR2, SIGTSTP and SIGCONT, and SIGCHLD. Call it before there are other threads:
    they inherit the mask. Signals that are ignored, as under nohup(1), stay so.

    :returns: the signal mask before, which a child needs.
    """
    wanted = {*ENDING, *TO_THE_COMMAND_ALONE, signal.SIGTSTP}
    numbers = {number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN}
    for number in (signal.SIGCHLD, signal.SIGCONT):
        # With a handler they are not ignored, whatever was inherited; no handler is ever called: all are blocked.
        signal.signal(number, lambda number, frame: None)
        numbers.add(number)
    # SIGTTOU: a process in the background that takes the terminal back, or writes to it, is not stopped by that.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*numbers, signal.SIGTTOU})
    threading.Thread(target=_wait, args=(numbers, heard), name="shedlock-signals", daemon=True).start()
    return before


def _wait(numbers: Set[int], heard: Callable[[int], None]) -> None:
    while True:
        heard(signal.sigwait(numbers))


def stop_process() -> None:
    """Stop this process as Ctrl-Z does, until a shell continues it. Returns at once where no shell could."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


def stop_process_group() -> None:
    """:func:`stop_process` for the whole process group, so that the shell sees its job stopped."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    os.killpg(0, signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


class Terminal:
    """This process's controlling terminal, if it has one, wherever its standard streams go.

    The command is a process group of its own. It gets the terminal when it first reads from it or sets it, for which
    the kernel stops a group in the background; until then Ctrl-C and Ctrl-Z reach this process.
    """

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        except OSError:
            self._file = None

    def exists(self) -> bool:
        return self._file is not None

    def lend(self, group: int) -> bool:
        """Put ``group`` in the foreground, if this process's group is there. False: it is not."""
        return self._move(os.getpgrp(), group)

    def take_back(self, group: int) -> None:
        """Put this process's group in the foreground, if ``group`` is there."""
        self._move(group, os.getpgrp())

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _move(self, giver: int, taker: int) -> bool:
        if self._file is None:
            return False
        try:
            if os.tcgetpgrp(self._file) != giver:
                return False
            os.tcsetpgrp(self._file, taker)
        except OSError:  # the terminal was closed, or the group has ended
            return False
        return True
