"""One guarded run of a command: asks for the lock, starts the command, and acts on whatever happens meanwhile.

All that happens (signals, a child that ended, events of the guard) comes as messages through one queue to the main
thread, which waits for nothing else while the command runs.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue

from shedlock_py._clock import monotonic
from shedlock_py.cli.child import SIGNALLED, CannotStart, Child, environment
from shedlock_py.cli.common import LOST, printable
from shedlock_py.cli.signals import ENDING, Terminal, listen, stop_process, stop_process_group
from shedlock_py.cli.tables import holder_of, in_words
from shedlock_py.context import current_lease
from shedlock_py.errors import ProviderError
from shedlock_py.events import Event, LeaseLost, LockExtended, LostReason, ProviderFailed
from shedlock_py.gates import Skipped
from shedlock_py.guard import attempt
from shedlock_py.lease import Lease
from shedlock_py.provider import LockProvider, undo_of
from shedlock_py.request import LockRequest

LONGEST_PAUSE = 1.0
"""Seconds between two attempts to get a lock that is waited for."""
SHORTEST_PAUSE = 0.05
LATE = 0.05
"""Seconds after the end of the trust window in which the guard's own event, which has the reason, is waited for."""
LONGEST_SLEEP = 30.0
"""Seconds; the clock of a wait stands still while the machine is suspended, that of a lease does not."""
GROUP_PAUSE = 0.05
"""Seconds between two looks at a group whose leader has ended: nothing tells us of the other members."""
_ENDS_NO_WAIT = (signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP)
"""Signals that come before the command is started, and do not keep it from starting."""


class CommandFailed(Exception):
    """The command ended with an exit code that is not 0. Listeners are to hear of a failed task."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


@dataclass(frozen=True)
class Signal:
    """A signal that this process got."""

    number: int


class Guarded:
    """One run. ``happened`` gets every signal and every event of it."""

    def __init__(
        self, request: LockRequest, program: str, command: Sequence[str], *, keep_alive: bool, grace: timedelta
    ) -> None:
        self.happened: SimpleQueue[Signal | Event] = SimpleQueue()
        self._request = request
        self._program, self._command = program, command
        self._keep_alive = keep_alive
        self._grace = grace
        self._provider: LockProvider | None = None
        self._skipped: Skipped | None = None
        self._is_unreachable = False
        self._is_lost = False
        self._is_starting = True
        self._is_interrupted = False
        self._mask = listen(self._heard)  # first: threads inherit it
        self._voice = Voice()

    def run(self, provider: LockProvider | None, wait: timedelta) -> int | None:
        """The exit code; None if the command was skipped.

        :raises ProviderError: the store failed; the command did not run.
        :raises CannotStart: the system refuses to execute it.
        """
        self._provider = provider
        until = monotonic() + wait.total_seconds()
        try:
            while True:
                done = attempt(
                    self._request, self._task, provider=provider, keep_alive=self._keep_alive, on_lost=_told_as_event
                )
                if not isinstance(done, Skipped):
                    return 0
                self._skipped = done
                left = until - monotonic()
                is_over = done.reason != "held" or left <= 0 or provider is None
                code = self._interrupted(0 if is_over else min(left, self._pause(provider)))
                if is_over or code is not None:
                    return code
        except CommandFailed as failed:
            return failed.code
        finally:
            while not self.happened.empty():
                self._tell_late(self._next(0))
            self._voice.close()

    def skip_reason(self, provider: LockProvider | None) -> str:
        """Why the command was skipped, for people."""
        name = self._request.name
        if self._skipped and self._skipped.reason == "already_ran":
            return f"lock {name!r}: skipped, it was granted in this period before (--once-per)"
        with suppress(Exception):  # what happened is settled, whatever the look at the record says
            record = provider.record(name) if provider else None
            if record and record.is_held:
                return f"lock {name!r}: skipped, held by {holder_of(record)} for another {in_words(record.remaining)}"
        return f"lock {name!r}: skipped, it was held"

    # Before the command runs

    def _heard(self, number: int) -> None:
        """In the thread that waits for signals."""
        if self._is_starting and number == signal.SIGTSTP:
            stop_process()
            return
        if self._is_starting and number in ENDING:
            if self._is_interrupted:
                os._exit(SIGNALLED + number)  # the store does not answer: the second one does not wait for it
            self._is_interrupted = True
        self.happened.put(Signal(number))

    def _interrupted(self, seconds: float = 0) -> int | None:
        """The exit code, if a signal has come or comes within so many seconds."""
        until = monotonic() + seconds
        while True:
            try:
                what = self.happened.get(timeout=max(0.0, until - monotonic()))
            except Empty:
                return None
            if isinstance(what, Signal) and what.number not in _ENDS_NO_WAIT:
                return SIGNALLED + what.number

    def _pause(self, provider: LockProvider | None) -> float:
        """Seconds until the next attempt: when the lock should be free, but soon, since a holder may release early."""
        record = provider.record(self._request.name) if provider else None
        rest = record.remaining.total_seconds() if record else 0
        if rest > LONGEST_PAUSE / 2:
            return LONGEST_PAUSE * (0.5 + random.random() / 2)
        return rest + SHORTEST_PAUSE * (1 + random.random())  # those that wait together shall not ask together

    # While it runs

    def _task(self) -> None:
        code = self._run()
        if code != 0:
            raise CommandFailed(code)

    def _run(self) -> int:
        lease = current_lease()
        self._is_starting = False
        interrupted = self._interrupted()
        if interrupted is not None:
            self._give_back(lease)
            return interrupted
        if lease is None:  # this process stood still since the grant
            self._is_lost = True
            self._say("was lost before the command was started")
            return LOST
        # From here on signals wait in the queue until the child is there.
        try:
            child = Child(self._program, self._command, environment(lease), self._mask)
        except CannotStart:
            self._give_back(lease)
            raise
        terminal = Terminal()
        try:
            return self._watch(child, lease, terminal)
        finally:
            if child.exit_code() is None:
                child.kill()  # a mistake of ours: the lock must not be released while it runs
            terminal.take_back(child.group)
            terminal.close()

    def _give_back(self, lease: Lease | None) -> None:
        """The command was not started: neither ``--at-least`` nor the period of ``--once-per`` is used up."""
        if lease is None or self._provider is None:
            return
        try:
            if undo_of(self._provider)(lease):
                lease.end()  # the guard has nothing to release
        except ProviderError as error:
            self._say(f"could not be given back as if it had not been acquired: {error}")

    def _watch(self, child: Child, lease: Lease, terminal: Terminal) -> int:
        while True:
            what = self._next(min(lease.trusted_for().total_seconds() + LATE, LONGEST_SLEEP))
            code = child.exit_code()
            if code is not None:
                self._tell_late(what)
                return code
            if isinstance(what, LeaseLost) or not lease.is_trusted():
                # Before SIGCONT is passed on: the lease may have ended while both were stopped.
                self._end(child, what.reason if isinstance(what, LeaseLost) else None)
                return LOST
            if isinstance(what, Signal):
                child.pass_on(what.number)
            if (stopped_by := child.stopped_by()) is not None:
                self._stopped(child, terminal, stopped_by)

    def _stopped(self, child: Child, terminal: Terminal, number: int) -> None:
        """The command was stopped. By its terminal, it gets that, or is a stopped job of the shell, as is this process.

        One that an operator has stopped stays so, until its lease is over.
        """
        if number in (signal.SIGTTIN, signal.SIGTTOU) and terminal.lend(child.group):
            child.send_to_group(signal.SIGCONT)
        elif number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP) and terminal.exists():
            terminal.take_back(child.group)
            stop_process_group(number)
            if number == signal.SIGTSTP:  # this process was continued, or, in a container without a shell, not stopped
                self.happened.put(Signal(signal.SIGCONT))

    def _end(self, child: Child, reason: LostReason | None) -> None:
        """The lease is lost: end the command, and what it has started."""
        self._is_lost = True
        child.send_to_group(signal.SIGTERM)
        child.send_to_group(signal.SIGCONT)  # a stopped process gets no SIGTERM
        self._say(f"{self._why(reason)}; the command gets SIGTERM, and SIGKILL after {in_words(self._grace)}")
        until = monotonic() + self._grace.total_seconds()
        while child.exists() and (left := until - monotonic()) > 0:
            what = self._next(left if child.exit_code() is None else min(left, GROUP_PAUSE))
            if isinstance(what, Signal):
                child.pass_on(what.number)
        child.kill()

    def _why(self, reason: LostReason | None) -> str:
        match reason:
            case "revoked":
                return "was freed or taken over by force"
            case "unreachable":
                return "was lost: the store has not answered for so long that others may get the lock"
            case _ if self._keep_alive:
                return "was lost: it could not be extended"
        return f"was lost: the command takes longer than --at-most {in_words(self._request.lock_at_most_for)}"

    # What is told

    def _next(self, seconds: float) -> Signal | LeaseLost | None:
        """What happens within so many seconds and matters to the command. The rest is only told."""
        try:
            what = self.happened.get(timeout=max(0.0, seconds))
        except Empty:
            return None
        match what:
            case Signal() | LeaseLost():
                return what
            case ProviderFailed(operation="extend", error=error) if not self._is_unreachable:
                self._is_unreachable = True
                self._say(f"could not be extended, trying again: {error}")
            case LockExtended():
                self._is_unreachable = False
            case ProviderFailed(operation="release", error=error):
                self._say(f"could not be released, and is held until its lease ends: {error}")
        return None

    def _tell_late(self, what: Signal | LeaseLost | None) -> None:
        """What happened when the command had ended."""
        if isinstance(what, LeaseLost) and not self._is_lost:
            self._is_lost = True
            self._say(f"{self._why(what.reason)}; the command has ended, but another may have run at the same time")

    def _say(self, text: str) -> None:
        self._voice.say(f"lock {self._request.name!r} {text}")


def _told_as_event(_lost: LeaseLost) -> None:
    """Without an ``on_lost``, the guard would not watch a lease that is not kept alive."""


class Voice:
    """Lines on standard error. A reader that does not read must not keep us from ending a command."""

    SECONDS = 2.0

    def __init__(self) -> None:
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="shedlock-voice", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        self._lines.put(printable(f"shedlock: {' '.join(text.split())}"))

    def close(self) -> None:
        """Wait until all is written, but not for long."""
        self._lines.put(None)
        self._thread.join(self.SECONDS)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            with suppress(OSError):
                if sys.stderr is not None:
                    # Not through Python's buffer, which the interpreter would wait for at its end.
                    os.write(sys.stderr.fileno(), f"{line}\n".encode(errors="backslashreplace"))
