"""What the electors for threads and for asyncio share."""

from __future__ import annotations

from datetime import timedelta
from random import SystemRandom

from shedlock_py._clock import monotonic
from shedlock_py._process import OwningProcess
from shedlock_py.config import emit
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.election.callbacks import Callback, Callbacks
from shedlock_py.election.commands import Intent
from shedlock_py.election.demotion import Demotion
from shedlock_py.election.program import Election
from shedlock_py.election.settings import ElectionSettings
from shedlock_py.events import Event, logger
from shedlock_py.record import LockRecord
from shedlock_py.request import LockRequest

random = SystemRandom().random
"""Random numbers from the system: those of ``random.random`` are the same in all children that C code has forked."""


class Elector:
    """The part of an elector that neither waits nor does I/O."""

    def __init__(self, settings: ElectionSettings, callbacks: Callbacks) -> None:
        self._settings = settings
        self._callbacks = callbacks
        self._is_started = False
        self._owner = OwningProcess()
        self._election = self._new_election()

    @property
    def name(self) -> str:
        """The name of the election: a lock name."""
        return self._settings.name

    @property
    def holder(self) -> str:
        """How the lock record names this node."""
        return self._election.holder

    @property
    def term(self) -> int | None:
        """The fencing token of this node's leadership; None while it does not lead."""
        return self._election.fencing_token if self._owner.is_current() else None

    def is_leader(self) -> bool:
        """Whether this node leads: local, free, and False *before* another node can lead.

        Computed from this node's own monotonic clock at each call. False in a forked child: its parent leads.
        """
        return self._owner.is_current() and self._election.is_leader()

    def add_callbacks(
        self,
        on_started_leading: Callback | None = None,
        on_stopped_leading: Callback | None = None,
        on_renewed: Callback | None = None,
    ) -> None:
        """Add callbacks to those of the constructor. ``on_renewed`` is called after each renewal."""
        self._callbacks.add(on_started_leading, on_stopped_leading, on_renewed)

    def resign(self) -> None:
        """If this node leads, let another node lead as soon as the callbacks have returned. Does not wait."""
        self._request("resign")

    def __repr__(self) -> str:
        state = f"leads, term {self.term}" if self.is_leader() else "does not lead"
        return f"<{type(self).__name__} {self.name!r}: {self.holder!r} {state}>"

    # For the election program

    def _new_election(self) -> Election:
        return Election(
            self._settings,
            monotonic,
            random,
            notify=self._notify,
            renewed=self._callbacks.call_renewed,
            changed=self._notify_waiters,
            is_busy=self._callbacks.are_running,
        )

    def _prepare_start(self) -> Election:
        self._callbacks.forget_calls()
        self._election = election = self._new_election()
        self._owner = OwningProcess()  # last: is_leader() of a forked child must not see the parent's election
        self._is_started = True
        return election

    def _notify(self, event: Event) -> None:
        try:
            self._emit(event)
        finally:  # also when a listener ends the program
            self._callbacks.call_for(event)
            self._notify_waiters()

    def _emit(self, event: Event) -> None:
        emit(event)

    def _fail(self, election: Election, error: BaseException) -> None:
        """End the leadership after an unexpected error, because no renewal follows any more."""
        kind = type(error).__name__
        logger.exception("election %r: the elector has failed (%s), and takes no part any more", self.name, kind)
        self._give_up(election)

    def _give_up(self, election: Election) -> None:
        try:
            election.give_up()
        except BaseException:  # of a listener or callback; the error that ended the campaign matters more
            logger.exception("election %r: a callback could not be called", self.name)

    # For users

    def _is_here(self) -> bool:
        """Whether the elector was started in this process. It may have been stopped since."""
        return self._is_started and self._owner.is_current()

    def _is_decided(self) -> bool:
        """Whether this node leads, or never will."""
        return self.is_leader() or not self._election.may_lead()

    def _has_taken_over(self) -> bool:
        """Whether ``take_over()`` has nothing left to wait for."""
        return self._is_decided() or not self._election.is_taking_over()

    def _request(self, intent: Intent) -> None:
        if self._is_here():
            self._election.intents.add(intent)
            self._wake()

    def _demotion(self, former: LockRecord, cooldown: timedelta) -> LockRequest:
        return Demotion(former.holder, cooldown).request(self.name, self._settings.renew_deadline)

    def _wake(self) -> None:
        """End the wait of the election program."""
        raise NotImplementedError

    def _notify_waiters(self) -> None:
        """Let the callers that wait for this node to lead check again."""
        raise NotImplementedError


def parse_timeout(timeout: Duration | None) -> float | None:
    """The seconds of a timeout; None: no limit."""
    return None if timeout is None else parse_duration(timeout, "timeout", zero=True).total_seconds()


def moment_of(timeout: Duration | None) -> float | None:
    """When a timeout ends; None: never."""
    seconds = parse_timeout(timeout)
    return None if seconds is None else monotonic() + seconds
