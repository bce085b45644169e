"""Signals as messages: a thread receives them, so that none is lost and none interrupts the main thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Set

TO_THE_COMMAND_ALONE = frozenset({signal.SIGUSR1, signal.SIGUSR2})
"""They end processes without a handler for them, such as other members of the command's process group."""

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


def listen(on_signal: Callable[[int], None]) -> Set[int]:
    """Block the signals of this process, and call ``on_signal`` with each, in another thread.

    They are ``ENDING``, SIGUSR1 and SIGUSR2, SIGTSTP and SIGCONT, and SIGCHLD. Call this before other threads start:
    threads inherit the mask. Signals that are ignored, as under nohup(1), stay ignored.

    :returns: the former signal mask, which a child needs.
    """
    wanted = {*ENDING, *TO_THE_COMMAND_ALONE, signal.SIGTSTP}
    numbers = {number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN}
    for number in (signal.SIGCHLD, signal.SIGCONT):
        # A handler keeps the kernel from ignoring them. It is never called: the signals are blocked.
        signal.signal(number, lambda number, frame: None)
        numbers.add(number)
    # SIGTTOU: the kernel must not stop this process when it takes the terminal back from the command.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*numbers, signal.SIGTTOU})
    threading.Thread(target=_wait, args=(numbers, on_signal), name="shedlock-signals", daemon=True).start()
    return before


def _wait(numbers: Set[int], on_signal: Callable[[int], None]) -> None:
    while True:
        on_signal(signal.sigwait(numbers))


def stop_process() -> None:
    """Stop this process as Ctrl-Z does, until a shell continues it. Returns at once where no shell could."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


def stop_process_group(number: int) -> None:
    """Stop the whole process group with the signal that stopped the command.

    The shell then sees its job stopped, and an enclosing ``shedlock run`` sees by which signal.
    """
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.killpg(0, number)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Terminal:
    """The controlling terminal of this process, if there is one, wherever the standard streams go.

    The command's process group starts in the background. When it first reads from the terminal or changes its settings,
    the kernel stops it, and this process lends it the terminal. Until then Ctrl-C and Ctrl-Z reach this process.
    """

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        except OSError:
            self._file = None

    def exists(self) -> bool:
        return self._file is not None

    def lend(self, group: int) -> bool:
        """Move ``group`` to the foreground, if this process's group is there. False: it is not."""
        return self._move(os.getpgrp(), group)

    def take_back(self, group: int) -> None:
        """Move this process's group to the foreground, if ``group`` is there."""
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
