"""A command that runs while this node leads. An elector decides; the main thread starts and ends the command.

The elector calls a callback for each term. The callback returns when the command of the term has ended. Until then the
elector renews the lease, also while this node hands over, and only then releases it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from queue import Empty
from typing import Literal

from shedlock_py.cli.child import (
    ENDING,
    FENCING_TOKEN,
    LOCK_NAME,
    SIGNALLED,
    TERM,
    CannotStart,
    Child,
    KillSwitch,
    move_terminal,
)
from shedlock_py.cli.common import SOFTWARE
from shedlock_py.cli.supervisor import FLUSH_SECONDS, Supervisor
from shedlock_py.election.elector import LeaderElector
from shedlock_py.events import LeaderChanged, LeadershipStarted, LeadershipStopped, ProviderFailed
from shedlock_py.operators.display import in_words
from shedlock_py.runtime.process import monotonic

OnExit = Literal["resign", "stay", "exit"]
LONGEST_WAIT = 1.0
"""Seconds. The clock of a wait stands still while the machine is suspended; the clock of a lease does not."""
FAILURE_PAUSE = 60.0
"""Seconds between two reports about a failing store."""
_LEAVING = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
"""Signals that end this node. The command decides about other signals, such as SIGHUP."""


class Leading(Supervisor):
    """A node of an election, and the command that it runs while it leads.

    :param grace: time between SIGTERM and SIGKILL when the leadership is lost; it ends with the trust window.
    :raises CannotStart: the program does not exist, or is not executable.
    """

    def __init__(self, name: str, command: Sequence[str], *, grace: timedelta, on_exit: OnExit) -> None:
        self._name = name
        self._grace = grace.total_seconds()
        self._on_exit = on_exit
        self._terms: deque[LeadershipStarted] = deque()
        """Terms that have begun, without a command so far."""
        self._ended = threading.Semaphore(0)
        """Released once per term, when the command of the term has ended."""
        self._is_leaving = False
        self._is_lost = False
        """This process ended the command, because this node lost the leadership."""
        self._reports_failures_at = float("-inf")
        super().__init__(f"election {name!r}:", command)

    def run(self, elector: LeaderElector) -> int:
        """Take part until a signal comes or the command ends. Return the exit code."""
        self._elector = elector
        elector.add_callbacks(self._ended.acquire)
        try:
            elector.start()
            return self._take_part()
        finally:
            self._ended.release()  # for a term that begins now: it gets no command
            elector.stop()
            self.flush(FLUSH_SECONDS)

    def _take_part(self) -> int:
        while self._elector.takes_part:
            message = self.next_message(LONGEST_WAIT)
            if isinstance(message, int) and message in ENDING:
                return SIGNALLED + message
            if not self._terms:
                continue
            code = self._lead(self._terms.popleft())
            if code is None:
                continue
            if self._is_leaving or (self._on_exit == "exit" and not self._is_lost):
                return code
            if self._on_exit == "resign":
                self._elector.resign()
        return SOFTWARE  # the elector has failed, and has logged why

    # While this node leads

    def _lead(self, term: LeadershipStarted) -> int | None:
        """Run the command in this term. Return its exit code, or None if the leadership ended before the start."""
        self._is_idle = self._is_lost = False
        switch, child = KillSwitch(), None
        try:
            if not self._elector.is_leader():
                return None
            variables = {LOCK_NAME: self._name, FENCING_TOKEN: term.term, TERM: term.term}
            child = Child(self._program, self._command, variables, self._mask)
            switch.arm(child.pid)
            self.report(f"leading, term {term.term}; the command is process {child.pid}")
            return self._supervise(child)
        except CannotStart as error:
            self.report(str(error))
            return error.code
        finally:
            if child is not None:
                if child.exists() and not self._is_lost:  # its group must not overlap the next leader's command
                    self.end(child, min(monotonic() + self._grace, self._trusted_until()))
                move_terminal(child.pid, os.getpgrp())
            switch.disarm()
            self._is_idle = True
            self._ended.release()

    def _supervise(self, child: Child) -> int:
        """Wait for the command and pass signals on to it. End it before another node can lead. Return its exit code."""
        while True:
            trusted_until = self._trusted_until()
            message = self.next_message(min(self._seconds_left(), LONGEST_WAIT))
            code = child.exit_code()
            if code is not None:
                if isinstance(message, int):  # it came while the command ended, and ends this node all the same
                    self.pass_on(child, message)
                if self._on_exit != "exit" and not self._is_leaving:
                    self.report(f"the command ended with exit code {code}")
                return code
            if isinstance(message, LeadershipStopped) or self._seconds_left() <= 0:
                # Before SIGCONT is passed on: the lease may have ended while this process and the command were stopped.
                self._end(child, message, trusted_until)
                return child.exit_code(wait=True) or 0
            if message is not None:
                self.pass_on(child, message)
            if child.stopped_by is not None:
                self.on_stopped(child, child.stopped_by)

    def _seconds_left(self) -> float:
        """Return the seconds until the command must get SIGTERM, if no renewal succeeds."""
        return self._elector.trusted_for().total_seconds() - self._grace

    def _trusted_until(self) -> float:
        return monotonic() + self._elector.trusted_for().total_seconds()

    def _end(self, child: Child, stopped: LeadershipStopped | int | None, trusted_until: float) -> None:
        """End the command and its process group, because the leadership is lost or soon lost."""
        self._is_lost = True
        kill_time = min(monotonic() + self._grace, trusted_until)
        if isinstance(stopped, LeadershipStopped) and stopped.reason == "revoked":
            why = (
                "leadership was taken away: another node took over, or it was demoted or freed by force, or the store "
                "forgot it"
            )
        else:
            why = "leadership is lost: the store has not replied for so long that another node may lead soon"
            self._elector.resign()  # if the store replies again, this node must not lead without its command
        left = timedelta(seconds=max(0.0, kill_time - monotonic()))
        self.report(f"{why}; the command gets SIGTERM, and SIGKILL after {in_words(left)}")
        self.end(child, kill_time)

    def pass_on(self, child: Child, number: int) -> None:
        super().pass_on(child, number)
        if number in _LEAVING and not self._is_leaving:
            self._is_leaving = self._is_interrupted = True
            self._elector.leave()  # the lease is renewed until the command has ended

    # Messages

    def next_message(self, seconds: float) -> int | LeadershipStopped | None:
        """Return the next signal or loss of the leadership, or None after ``seconds``. Note other messages."""
        try:
            message = self.messages.get(timeout=max(0.0, seconds))
        except Empty:
            return None
        match message:
            case int():
                return message
            case LeadershipStopped(name=self._name, reason=reason) if reason != "resigned":
                return message
            case LeadershipStarted(name=self._name):
                self._terms.append(message)
            case LeaderChanged(name=self._name, holder=holder) if holder != self._elector.holder:
                self.report(f"waiting; {holder} leads")
            case ProviderFailed(lock_name=self._name, error=error) if monotonic() >= self._reports_failures_at:
                self._reports_failures_at = monotonic() + FAILURE_PAUSE
                self.report(f"the store fails, trying again: {error}")
        return None
