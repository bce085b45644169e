"""Base of ``shedlock run`` and ``shedlock lead``: signals, the terminal, the end of a command, reports.

Signals, the end of the command and the library's events arrive in one queue. While the command runs, the main thread
waits only for this queue.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue

from shedlock_py.cli.child import ENDING, SIGNALLED, Child, find_program, listen, move_terminal, stop
from shedlock_py.cli.common import one_line, printable
from shedlock_py.events import Event
from shedlock_py.runtime.process import monotonic

GROUP_PAUSE = 0.05
"""Seconds between two checks for members of the command's group, because no signal reports their end."""
FLUSH_SECONDS = 2.0
"""How long this process waits at its end for the reader of standard error."""


class Supervisor:
    """Runs a command, reads the queue, and reports.

    ``messages`` receives the number of every signal. The caller sends every event of the library to it.

    :param subject: the first words of each line on standard error, for example "lock 'job'".
    :raises CannotStart: the program does not exist, or is not executable.
    """

    def __init__(self, subject: str, command: Sequence[str]) -> None:
        self.messages: SimpleQueue[int | Event] = SimpleQueue()
        self._subject = subject
        self._program = find_program(command[0])  # first: a mistyped command must not use up the lock and the fire time
        self._command = command
        self._unwritten = b""
        self._error_file: int | None = None
        self._is_idle = True
        """No command runs that could receive signals."""
        self._is_interrupted = False
        self._mask = listen(self.on_signal)  # before any other thread starts: threads inherit the signal mask

    def on_signal(self, number: int) -> None:
        """Handle a signal, in the thread that waits for signals."""
        if self._is_idle and number == signal.SIGTSTP:
            stop(os.getpid(), number)
            return
        is_end = self._is_idle and number in ENDING
        if is_end and self._is_interrupted:
            os._exit(SIGNALLED + number)  # the second signal: do not wait for a silent store
        self.messages.put(number)  # first, because the flag makes the main thread look for it
        self._is_interrupted = self._is_interrupted or is_end

    def on_stopped(self, child: Child, number: int) -> None:
        """Handle a stop of the command: lend it the terminal, or stop this process, too, as a shell's job.

        The command's group starts in the background. When the command first reads from the terminal or changes its
        settings, the kernel stops the command. Until then, Ctrl-C and Ctrl-Z reach this process. A command that an
        operator stopped with SIGSTOP stays stopped until its lease ends.
        """
        child.stopped_by = None
        group = os.getpgrp()
        if number in (signal.SIGTTIN, signal.SIGTTOU) and move_terminal(group, child.pid):
            child.send(signal.SIGCONT)
        elif number != signal.SIGSTOP and move_terminal(child.pid, group) is not None:
            # The whole group, so that the shell sees its job stopped, and an enclosing run sees the signal.
            stop(0, number)
            if number == signal.SIGTSTP:  # a shell continued this process, or it was not stopped because no shell could
                self.messages.put(signal.SIGCONT)

    def end(self, child: Child, until: float) -> None:
        """End the command and its process group: SIGTERM now, SIGKILL at ``until``."""
        child.send(signal.SIGTERM)
        child.send(signal.SIGCONT)  # a stopped process does not handle SIGTERM
        while child.exists() and (left := until - monotonic()) > 0:
            message = self.next_message(left if child.exit_code() is None else min(left, GROUP_PAUSE))
            if isinstance(message, int):
                self.pass_on(child, message)
        child.kill()

    def pass_on(self, child: Child, number: int) -> None:
        """Pass a signal that this process received on to the command."""
        child.pass_on(number)

    def next_message(self, seconds: float) -> int | Event | None:
        """Return the next message for the command, or None after ``seconds``. Report other messages."""
        raise NotImplementedError

    # Standard error

    def report(self, text: str) -> None:
        """Write a line to standard error without waiting. A stalled reader must not delay the end of the command."""
        line = printable(f"shedlock: {self._subject} {one_line(text)}")
        self._unwritten += f"{line}\n".encode(errors="backslashreplace")
        self.flush(0)

    def flush(self, seconds: float) -> None:
        """Write lines while the reader has room for them, for at most ``seconds``. Keep other lines for later."""
        until = monotonic() + seconds
        with suppress(OSError):
            if self._error_file is None and sys.stderr is not None:
                # Not through Python's buffer: the interpreter would wait for the reader at exit.
                self._error_file = _without_blocking(sys.stderr.fileno())
            while self._unwritten and self._error_file is not None:
                if not select.select([], [self._error_file], [], max(0.0, until - monotonic()))[1]:
                    return
                # POSIX: up to PIPE_BUF bytes enter a pipe at once, not mixed with the command's output.
                written = os.write(self._error_file, self._unwritten[: select.PIPE_BUF])
                self._unwritten = self._unwritten[written:]


def _without_blocking(file: int) -> int:
    """Return another descriptor of a pipe or terminal. A write to it never blocks. Return ``file`` if that fails.

    select() is not enough: a terminal may have too little room, and the command may fill a pipe at any moment.
    O_NONBLOCK on ``file`` itself would also affect the command.
    """
    try:
        if not os.isatty(file) and not stat.S_ISFIFO(os.fstat(file).st_mode):
            return file
        path = os.ttyname(file) if os.isatty(file) else f"/proc/self/fd/{file}"
        return os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:  # the terminal of another user, or no /proc
        return file
