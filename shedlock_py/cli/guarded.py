"""One run of a command under a lock: acquire, start the command, and end it when the lease is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from queue import Empty

from shedlock_py._process import monotonic
from shedlock_py.cli.child import FENCING_TOKEN, LOCK_NAME, SIGNALLED, CannotStart, Child, move_terminal
from shedlock_py.cli.common import LOST
from shedlock_py.cli.supervisor import FLUSH_SECONDS, Supervisor
from shedlock_py.context import Skipped, current_lease
from shedlock_py.display import in_words
from shedlock_py.errors import ProviderError
from shedlock_py.events import LeaseLost, LockExtended, LostReason, ProviderFailed
from shedlock_py.guard import attempt
from shedlock_py.lease import Lease
from shedlock_py.provider import LockProvider, undo_of
from shedlock_py.record import LockRecord
from shedlock_py.request import LockRequest
from shedlock_py.waiting import Waiting

LATE = 0.05
"""Seconds after the end of the trust window in which the guard's ``LeaseLost``, which has the reason, may come."""
LONGEST_WAIT = 30.0
"""Seconds. The clock of a wait stands still while the machine is suspended; that of a lease does not."""


class CommandFailed(Exception):
    """The command ended with an exit code that is not 0: to the guard and its listeners, a task that failed."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


class Guarded(Supervisor):
    """One run of a command.

    :raises CannotStart: there is no such program.
    """

    def __init__(
        self, request: LockRequest, command: Sequence[str], *, keep_alive: bool | timedelta, grace: timedelta
    ) -> None:
        self._request = request
        self._keep_alive, self._grace = keep_alive, grace
        self._provider: LockProvider | None = None
        self._is_unreachable = False
        self._is_lost = False
        super().__init__(f"lock {request.name!r}", command)

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
        waiting = Waiting(wait, monotonic(), self._request.fire_time)
        try:
            while isinstance(skipped := try_once(), Skipped):
                record = self._record() if waiting.is_on else None
                pause = waiting.pause(monotonic(), record) if skipped.reason == "held" else None
                code = self._interrupted(pause or 0)
                if code is not None:
                    return code
                if pause is None:
                    return skipped
            return 0
        except CommandFailed as failed:
            return failed.code
        finally:
            while not self.messages.empty():
                self._report_late(self.next_message(0))
            self.flush(FLUSH_SECONDS)

    # Before the command runs

    def _record(self) -> LockRecord | None:
        """When the lock is free, as far as the store says so."""
        try:
            return None if self._provider is None else self._provider.record(self._request.name)
        except ProviderError:
            return None

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
        self._is_idle = False
        code = self._interrupted()
        if code is not None:
            self._give_back(lease)
        elif lease is None:  # this process was stopped since the grant, until the lease had ended
            self._is_lost = True
            self.report("was lost before the command was started")
            code = LOST
        else:
            code = self._run(lease)
        if code != 0:
            raise CommandFailed(code)

    def _run(self, lease: Lease) -> int:
        # From here on signals wait in the queue until the child exists.
        try:
            variables = {LOCK_NAME: lease.name, FENCING_TOKEN: lease.fencing_token}
            child = Child(self._program, self._command, variables, self._mask)
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
                lease._end()  # the guard has nothing to release
        except ProviderError as error:
            self.report(f"could not be given back as if it had not been acquired: {error}")

    def supervise(self, child: Child, lease: Lease) -> int:
        """Wait for the command and pass signals on to it; end it when its lease is lost. The exit code."""
        while True:
            message = self.next_message(min(lease.trusted_for().total_seconds() + LATE, LONGEST_WAIT))
            code = child.exit_code()
            if code is not None:
                self._report_late(message)
                return code
            if isinstance(message, LeaseLost) or not lease.is_trusted():
                # Before SIGCONT is passed on: the lease may have ended while this process and the command were stopped.
                self._end(child, message.reason if isinstance(message, LeaseLost) else None)
                return LOST
            if message is not None:
                self.pass_on(child, message)
            if child.stopped_by is not None:
                self.on_stopped(child, child.stopped_by)

    def _end(self, child: Child, reason: LostReason | None) -> None:
        """End the command and its process group, because the lease is lost."""
        self._is_lost = True
        until = monotonic() + self._grace.total_seconds()
        self.report(f"{self._why(reason)}; the command gets SIGTERM, and SIGKILL after {in_words(self._grace)}")
        self.end(child, until)

    # Messages

    def next_message(self, seconds: float) -> int | LeaseLost | None:
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
                self.report(f"could not be extended, trying again: {error}")
            case LockExtended():
                self._is_unreachable = False
            case ProviderFailed(operation="release", error=error):
                self.report(f"could not be released, and is held until its lease ends: {error}")
        return None

    def _report_late(self, message: int | LeaseLost | None) -> None:
        """Report what was noticed only after the command had ended."""
        if isinstance(message, LeaseLost) and not self._is_lost:
            self._is_lost = True
            why = self._why(message.reason)
            self.report(f"{why}; the command has ended, but another may have run at the same time")

    def _why(self, reason: LostReason | None) -> str:
        """:param reason: None: the event with the reason has not come yet."""
        match reason or ("unreachable" if self._is_unreachable else None):
            case "revoked":
                return "was freed or taken over by force, or the store forgot it"
            case "unreachable":
                return "was lost: the store has not replied for so long that others may get the lock"
            case "kept_too_long" if isinstance(self._keep_alive, timedelta):
                return f"was lost: the command takes longer than --keep-alive-for {in_words(self._keep_alive)}"
            case _ if self._keep_alive:
                return "was lost: it could not be extended"
        return f"was lost: the command takes longer than --at-most {in_words(self._request.lock_at_most_for)}"
