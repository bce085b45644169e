"""One run of a command under a lock: acquire, start the command, and end it when the lease is lost.

Signals, the end of the command and the guard's events arrive in one queue. The main thread reads that queue, and waits
for nothing else while the command runs.
"""

from __future__ import annotations

import os
import random
import select
import signal
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue

from shedlock_py._process import monotonic
from shedlock_py.cli.child import ENDING, SIGNALLED, CannotStart, Child, find_program, listen, move_terminal, stop
from shedlock_py.cli.common import LOST, one_line, printable
from shedlock_py.context import Skipped, current_lease
from shedlock_py.display import in_words
from shedlock_py.errors import ProviderError
from shedlock_py.events import Event, LeaseLost, LockExtended, LostReason, ProviderFailed
from shedlock_py.guard import attempt
from shedlock_py.lease import Lease
from shedlock_py.provider import LockProvider, undo_of
from shedlock_py.request import LockRequest

RETRY_PAUSE = (0.5, 1.0)
"""Seconds between two attempts to acquire, under ``--wait``. Random, so that processes do not all retry at once."""
LATE = 0.05
"""Seconds after the end of the trust window in which the guard's ``LeaseLost``, which has the reason, may come."""
LONGEST_WAIT = 30.0
"""Seconds. The clock of a wait stands still while the machine is suspended; that of a lease does not."""
GROUP_PAUSE = 0.05
"""Seconds between two checks for members of the command's group: no signal reports their end."""
FLUSH_SECONDS = 2.0
"""How long the end of the run waits for a reader of standard error."""


class CommandFailed(Exception):
    """The command ended with an exit code that is not 0: to the guard and its listeners, a task that failed."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


class Guarded:
    """One run of a command.

    ``messages`` receives the number of every signal, and must receive every event of the guard.

    :raises CannotStart: there is no such program.
    """

    def __init__(self, request: LockRequest, command: Sequence[str], *, keep_alive: bool, grace: timedelta) -> None:
        self.messages: SimpleQueue[int | Event] = SimpleQueue()
        self._request = request
        self._program = find_program(command[0])  # first: a mistyped command must not use up the lock and the fire time
        self._command = command
        self._keep_alive, self._grace = keep_alive, grace
        self._provider: LockProvider | None = None
        self._unwritten = b""
        self._error_file: int | None = None
        self._is_starting = True
        self._is_interrupted = False
        self._is_unreachable = False
        self._is_lost = False
        self._mask = listen(self.on_signal)  # before any other thread starts: threads inherit the signal mask

    def run(self, provider: LockProvider | None, wait: timedelta) -> int | Skipped:
        """The exit code, or why the command was skipped.

        :param provider: None where locking is switched off.
        :raises ProviderError: the store failed; the command did not run.
        :raises CannotStart: the system refuses to execute the command.
        """
        self._provider = provider
        # The queue receives LeaseLost. But the guard watches a lease without keep-alive only if there is an on_lost.
        try_once = partial(
            attempt, self._request, self._task, provider=provider, keep_alive=self._keep_alive, on_lost=lambda _: None
        )
        until = monotonic() + wait.total_seconds()
        try:
            while isinstance(skipped := try_once(), Skipped):
                left = until - monotonic() if skipped.reason == "held" else 0
                code = self._interrupted(min(left, random.uniform(*RETRY_PAUSE)))
                if code is not None:
                    return code
                if left <= 0:
                    return skipped
            return 0
        except CommandFailed as failed:
            return failed.code
        finally:
            while not self.messages.empty():
                self._report_late(self._next(0))
            self._flush(FLUSH_SECONDS)

    # Before the command runs

    def on_signal(self, number: int) -> None:
        """Called in the thread that waits for signals."""
        if self._is_starting and number == signal.SIGTSTP:
            stop(os.getpid(), number)
            return
        if self._is_starting and number in ENDING:
            if self._is_interrupted:
                os._exit(SIGNALLED + number)  # the store does not reply: a second signal does not wait for it
            self._is_interrupted = True
        self.messages.put(number)

    def _interrupted(self, seconds: float = 0) -> int | None:
        """The exit code, if a signal that ends this process has come or comes within so many seconds."""
        until = monotonic() + seconds
        with suppress(Empty):
            while True:
                message = self.messages.get(timeout=max(0.0, until - monotonic()))
                if isinstance(message, int) and message not in (signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP):
                    return SIGNALLED + message
        return None

    # While the command runs

    def _task(self) -> None:
        lease = current_lease()
        self._is_starting = False
        code = self._interrupted()
        if code is not None:
            self._give_back(lease)
        elif lease is None:  # this process was stopped since the grant, until the lease had ended
            self._is_lost = True
            self._report("was lost before the command was started")
            code = LOST
        else:
            code = self._run(lease)
        if code != 0:
            raise CommandFailed(code)

    def _run(self, lease: Lease) -> int:
        # From here on signals wait in the queue until the child exists.
        try:
            child = Child(self._program, self._command, lease, self._mask)
        except CannotStart:
            self._give_back(lease)
            raise
        try:
            return self.supervise(child, lease)
        finally:
            if child.exit_code() is None:
                child.kill()  # after an internal error: the lock must not be released while the command runs
            move_terminal(child.pid, os.getpgrp())

    def _give_back(self, lease: Lease | None) -> None:
        """Undo the acquire: a command that was not started uses up neither ``--at-least`` nor its ``--once-per``."""
        if lease is None or self._provider is None:
            return
        try:
            if undo_of(self._provider)(lease):
                lease.end()  # the guard has nothing to release
        except ProviderError as error:
            self._report(f"could not be given back as if it had not been acquired: {error}")

    def supervise(self, child: Child, lease: Lease) -> int:
        """Wait for the command and pass signals on to it; end it when its lease is lost. The exit code."""
        while True:
            message = self._next(min(lease.trusted_for().total_seconds() + LATE, LONGEST_WAIT))
            code = child.exit_code()
            if code is not None:
                self._report_late(message)
                return code
            if isinstance(message, LeaseLost) or not lease.is_trusted():
                # Before SIGCONT is passed on: the lease may have ended while this process and the command were stopped.
                self._end(child, message.reason if isinstance(message, LeaseLost) else None)
                return LOST
            if message is not None:
                child.pass_on(message)
            if child.stopped_by is not None:
                self._on_stopped(child, child.stopped_by)

    def _on_stopped(self, child: Child, number: int) -> None:
        """The command was stopped. By the terminal: lend the terminal, or stop this process, too, as a shell's job.

        The command's group starts in the background. When it first reads from the terminal or changes its settings, the
        kernel stops it. Until it has the terminal, Ctrl-C and Ctrl-Z reach this process. A command that an operator
        stopped with SIGSTOP stays stopped until its lease ends.
        """
        child.stopped_by = None
        group = os.getpgrp()
        if number in (signal.SIGTTIN, signal.SIGTTOU) and move_terminal(group, child.pid):
            child.send(signal.SIGCONT)
        elif number != signal.SIGSTOP and move_terminal(child.pid, group) is not None:
            # The whole group: the shell then sees its job stopped, and an enclosing run sees by which signal.
            stop(0, number)
            if number == signal.SIGTSTP:  # a shell continued this process, or no shell could: then it was not stopped
                self.messages.put(signal.SIGCONT)

    def _end(self, child: Child, reason: LostReason | None) -> None:
        """End the command and its process group, because the lease is lost."""
        self._is_lost = True
        child.send(signal.SIGTERM)
        child.send(signal.SIGCONT)  # a stopped process does not handle SIGTERM
        self._report(f"{self._why(reason)}; the command gets SIGTERM, and SIGKILL after {in_words(self._grace)}")
        until = monotonic() + self._grace.total_seconds()
        while child.exists() and (left := until - monotonic()) > 0:
            message = self._next(left if child.exit_code() is None else min(left, GROUP_PAUSE))
            if isinstance(message, int):
                child.pass_on(message)
        child.kill()

    # Messages

    def _next(self, seconds: float) -> int | LeaseLost | None:
        """The next message that concerns the command, if one comes within so many seconds. Others are only reported."""
        try:
            message = self.messages.get(timeout=max(0.0, seconds))
        except Empty:
            return None
        match message:
            case int() | LeaseLost():
                return message
            case ProviderFailed(operation="extend", error=error) if not self._is_unreachable:
                self._is_unreachable = True
                self._report(f"could not be extended, trying again: {error}")
            case LockExtended():
                self._is_unreachable = False
            case ProviderFailed(operation="release", error=error):
                self._report(f"could not be released, and is held until its lease ends: {error}")
        return None

    def _report_late(self, message: int | LeaseLost | None) -> None:
        """Report what was noticed only after the command had ended."""
        if isinstance(message, LeaseLost) and not self._is_lost:
            self._is_lost = True
            why = self._why(message.reason)
            self._report(f"{why}; the command has ended, but another may have run at the same time")

    def _why(self, reason: LostReason | None) -> str:
        match reason:
            case "revoked":
                return "was freed or taken over by force"
            case "unreachable":
                return "was lost: the store has not replied for so long that others may get the lock"
            case _ if self._keep_alive:
                return "was lost: it could not be extended"
        return f"was lost: the command takes longer than --at-most {in_words(self._request.lock_at_most_for)}"

    def _report(self, text: str) -> None:
        """Write a line to standard error without waiting: a stalled reader must not delay the end of the command."""
        line = printable(f"shedlock: lock {self._request.name!r} {one_line(text)}")
        self._unwritten += f"{line}\n".encode(errors="backslashreplace")
        self._flush(0)

    def _flush(self, seconds: float) -> None:
        """Write the lines as far as there is room for them within so many seconds; the rest is written later."""
        until = monotonic() + seconds
        with suppress(OSError):
            if self._error_file is None and sys.stderr is not None:
                # Not through Python's buffer, which the interpreter would wait for at its end.
                self._error_file = _without_blocking(sys.stderr.fileno())
            while self._unwritten and self._error_file is not None:
                if not select.select([], [self._error_file], [], max(0.0, until - monotonic()))[1]:
                    return
                # POSIX: a pipe takes so many bytes at once, not mixed with those of the command.
                written = os.write(self._error_file, self._unwritten[: select.PIPE_BUF])
                self._unwritten = self._unwritten[written:]


def _without_blocking(file: int) -> int:
    """Another descriptor of a pipe or terminal, on which a write never blocks; where there is none, ``file`` itself.

    That a file is ready does not suffice: a terminal may have too little room, and the command may fill a pipe at any
    moment. O_NONBLOCK on ``file`` itself would hold for the command, too.
    """
    try:
        if not os.isatty(file) and not stat.S_ISFIFO(os.fstat(file).st_mode):
            return file
        path = os.ttyname(file) if os.isatty(file) else f"/proc/self/fd/{file}"
        return os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:  # the terminal of another user, or no /proc
        return file
