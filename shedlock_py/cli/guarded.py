"""One run of a command under a lock: acquire, start the command, and end it when the lease is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from queue import Empty

from shedlock_py.cli.child import (
    ENDING,
    FENCING_TOKEN,
    LOCK_NAME,
    SIGNALLED,
    CannotStart,
    Child,
    KillSwitch,
    move_terminal,
)
from shedlock_py.cli.common import LOST
from shedlock_py.cli.supervisor import FLUSH_SECONDS, Supervisor
from shedlock_py.errors import ProviderError, ProviderUnreachable, TaskNotDone
from shedlock_py.events import (
    MISSES,
    Event,
    LeaseLost,
    LockExtended,
    LostReason,
    ProviderFailed,
    RunMissed,
    RunRecovered,
    SkipReason,
)
from shedlock_py.guard.context import current_lease
from shedlock_py.guard.functions import attempt
from shedlock_py.guard.once import run_once
from shedlock_py.guard.skips import Skipped, process_gates
from shedlock_py.model.lease import Lease
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest
from shedlock_py.model.waiting import Waiting
from shedlock_py.operators.display import in_words
from shedlock_py.provider import LockProvider, undo_of
from shedlock_py.runtime.process import monotonic

LATE = 0.05
"""Seconds after the end of the trust window. The guard's ``LeaseLost``, which has the reason, may come so late."""
LONGEST_WAIT = 30.0
"""Seconds. The clock of a wait stands still while the machine is suspended; the clock of a lease does not."""


class CommandFailed(Exception):
    """The command ended with an exit code that is not 0. The guard and its listeners see a failed task."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


class CancelledError(CommandFailed):
    """A signal to this process ended the command. The guard recognises a cancellation by this class name."""


class Guarded(Supervisor):
    """One run of a command.

    :raises CannotStart: the program does not exist, or is not executable.
    """

    def __init__(
        self,
        request: LockRequest,
        command: Sequence[str],
        *,
        keep_alive: bool | timedelta,
        grace: timedelta,
        max_recoveries: int = 0,
    ) -> None:
        """:param max_recoveries: 0 does not recover the run of another host."""
        self._request = request
        self._keep_alive, self._grace = keep_alive, grace
        self._max_recoveries = max_recoveries
        self._passed_on: set[int] = set()
        """Ending signals that this process received for the command."""
        self._provider: LockProvider | None = None
        self._is_unreachable = False
        self._is_lost = False
        super().__init__(f"lock {request.name!r}", command)

    def run(self, provider: LockProvider | None, wait: timedelta) -> int | Skipped:
        """Run the command. Return its exit code, or why it was skipped.

        :param provider: None while locking is switched off.
        :raises ProviderError: the store failed; the command did not run.
        :raises CannotStart: the system refuses to execute the command.
        """
        self._provider = provider
        process_gates.append(self._gate)
        try:
            return self._guard(provider, wait)
        except CommandFailed as failed:
            return failed.code
        finally:
            process_gates.remove(self._gate)
            while not self.messages.empty():
                self._report_late(self.next_message(0))
            self.flush(FLUSH_SECONDS)

    def _guard(self, provider: LockProvider | None, wait: timedelta) -> int | Skipped:
        # The queue receives LeaseLost. on_lost makes the guard watch a lease without keep-alive, too.
        try_once = partial(
            attempt, self._request, self._task, provider=provider, keep_alive=self._keep_alive, on_lost=lambda _: None
        )
        if self._max_recoveries:
            try_once = partial(try_once, recover=True, max_recoveries=self._max_recoveries)
        waiting, is_unreachable = Waiting(wait, monotonic(), self._request.fire_time), False
        while True:
            try:
                done = try_once()
                if not isinstance(done, Skipped):
                    return 0
                skipped: Skipped | None = done
                record = self._record() if waiting.is_on else None
                pause = waiting.pause(monotonic(), record) if done.reason == "held" else None
            except ProviderUnreachable as error:
                pause, skipped = waiting.pause(monotonic()) if waiting.is_on else None, None
                if pause is None:
                    raise
                if not is_unreachable:
                    is_unreachable = True
                    self.report(f"could not be acquired, trying again: {error}")
            code = self._interrupted(pause or 0)
            if code is not None:
                return code
            if pause is None and skipped is not None:
                return skipped

    # Before the command runs

    def _gate(self) -> SkipReason | None:
        """After a signal, skip: this ends the guard's wait for another host's run or for the store."""
        return "shutting_down" if self._is_idle and self._is_interrupted else None

    def _record(self) -> LockRecord | None:
        """Return the lock record, or None if the store does not reply with one."""
        try:
            return None if self._provider is None else self._provider.record(self._request.name)
        except ProviderError:
            return None

    def _interrupted(self, seconds: float = 0) -> int | None:
        """Return the exit code if an ending signal has come or comes within ``seconds``, else None."""
        until = monotonic() + seconds
        with suppress(Empty):
            while True:
                message = self.messages.get(timeout=max(0.0, until - monotonic()))
                if isinstance(message, Event):
                    self._note(message)
                elif message not in (signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP):
                    return SIGNALLED + message
        return None

    # While the command runs

    def _task(self) -> None:
        lease = current_lease()
        self._is_idle = False
        code = self._interrupted()
        if code is not None:
            self._passed_on.add(code - SIGNALLED)
            self._give_back(lease)
        elif lease is None:  # this process was stopped from the grant until the lease had ended
            self._is_lost = True
            self.report("was lost before the command was started")
            code = LOST
        else:
            code = self._run(lease)
        if code - SIGNALLED in self._passed_on:
            raise CancelledError(code)
        if code != 0:
            raise CommandFailed(code)

    def _run(self, lease: Lease) -> int:
        # From here on, signals wait in the queue until the child exists.
        switch, child = KillSwitch(), None
        try:
            variables = {LOCK_NAME: lease.name, FENCING_TOKEN: lease.fencing_token}
            child = Child(self._program, self._command, variables, self._mask)
            switch.arm(child.pid)
            return self.supervise(child, lease)
        except CannotStart:
            self._give_back(lease)
            raise
        finally:
            if child is not None:
                if child.exit_code() is None:
                    child.kill()  # after an internal error: the lock must not be released while the command runs
                move_terminal(child.pid, os.getpgrp())
            switch.disarm()

    def _give_back(self, lease: Lease | None) -> None:
        """Undo the acquire. A command that did not start must not use up ``--at-least`` and ``--once-per``."""
        if lease is None or self._provider is None:
            return
        try:
            if undo_of(self._provider)(lease):
                lease._end()  # so the guard does not release it
        except ProviderError as error:
            self.report(f"could not be given back, so this may count as a run: {error}")

    def supervise(self, child: Child, lease: Lease) -> int:
        """Wait for the command and pass signals on to it. End it when its lease is lost. Return the exit code."""
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
                self._passed_on |= {message} & ENDING
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
        """Return the next message for the command, or None after ``seconds``. Report other messages."""
        try:
            message = self.messages.get(timeout=max(0.0, seconds))
        except Empty:
            return None
        if isinstance(message, int | LeaseLost):
            return message
        self._note(message)
        return None

    def _note(self, event: Event) -> None:
        """Report an event if users need it."""
        match event:
            case ProviderFailed(operation="extend", error=error) if not self._is_unreachable:
                self._is_unreachable = True
                self.report(f"could not be extended, trying again: {error}")
            case LockExtended():
                self._is_unreachable = False
            case RunRecovered(former_holder=former_holder):
                self.report(f"runs again: the run on {former_holder} never ended")
            case RunMissed(fire_time=fire_time, reason=reason) if fire_time is not None:
                self.report(f"lost the run of {fire_time.isoformat()}: {MISSES[reason]}")
            case ProviderFailed(operation="release", error=error):
                self.report(f"could not be released, and is held until its lease ends: {error}")

    def _report_late(self, message: int | LeaseLost | None) -> None:
        """Report a loss that was noticed after the command had ended."""
        if isinstance(message, LeaseLost) and not self._is_lost:
            self._is_lost = True
            why = self._why(message.reason)
            self.report(f"{why}; the command has ended, but another may have run at the same time")

    def _why(self, reason: LostReason | None) -> str:
        """:param reason: None if the event with the reason has not come yet."""
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


class GuardedOnce(Guarded):
    """One run of a command under ``shedlock once``."""

    def _guard(self, provider: LockProvider | None, wait: timedelta) -> int:
        request = self._request
        at_most = request.lock_at_most_for
        try:
            run_once(
                request.name, self._task, wait, provider=provider, lock_at_most_for=at_most, on_lost=lambda _: None
            )
        except TaskNotDone:
            code = self._interrupted()
            if code is None:
                raise
            return code
        return 0

    def _give_back(self, lease: Lease | None) -> None:
        """Do nothing, because ``run_once`` gives the key back if the command fails."""
