"""``@leader_only``, and the common part of the electors for threads and for asyncio, which does not wait or do I/O."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from shedlock_py.election.program import Election, Intent, Term
from shedlock_py.election.settings import ElectionSettings
from shedlock_py.errors import ConfigurationError, LeaseLostError
from shedlock_py.events import Event, LeaderChanged, LeadershipStarted, LeadershipStopped, logger
from shedlock_py.guard.methods import bind_in_class
from shedlock_py.guard.skips import Gate, Skipped, gates_of, not_leader
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.lease import Lease
from shedlock_py.model.text import quoted
from shedlock_py.model.waiting import random_share
from shedlock_py.runtime.process import OwningProcess, monotonic
from shedlock_py.settings.emit import emit

Callback = Callable[[], Any]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(eq=False)
class CallbackCall:
    callback: Callback
    term: Term | None = None
    """The term, if this is a call of ``on_started_leading``: the call is the work of this term."""


_current_calls: ContextVar[frozenset[CallbackCall]] = ContextVar("shedlock_current_calls", default=frozenset())
"""The calls, of any elector, that the current code is part of."""


def leave_callbacks() -> None:
    """Take the running context out of all callbacks."""
    _current_calls.set(frozenset())


class Elector:
    """The part of an elector that does not wait or do I/O."""

    def __init__(
        self,
        settings: ElectionSettings,
        on_started_leading: Callback | None,
        on_stopped_leading: Callback | None,
        on_new_leader: Callable[[str], Any] | None,
    ) -> None:
        self._settings = settings
        self._on_started: list[Callback] = []
        self._on_stopped: list[Callback] = []
        self._on_renewed: list[Callback] = []
        self._check_callback(on_new_leader)
        self._on_new_leader = on_new_leader
        self.add_callbacks(on_started_leading, on_stopped_leading)
        self._runner: Any = None
        """The thread or task that carries out the election program. It may have ended."""
        self._is_woken = False
        self._election = self._create_election()

    @property
    def name(self) -> str:
        """The name of the election: a lock name."""
        return self._settings.name

    @property
    def lease_duration(self) -> timedelta:
        """How long the store keeps the lease of a silent leader."""
        return self._settings.durations.lease_duration

    @property
    def renew_deadline(self) -> timedelta:
        """How long a leader trusts its lease without a renewal."""
        return self._settings.durations.renew_deadline

    @property
    def retry_period(self) -> timedelta:
        """How often a leader renews its lease, and a follower reads the record."""
        return self._settings.durations.retry_period

    @property
    def holder(self) -> str:
        """The name of this node in the lock record."""
        return self._election.holder

    @property
    def term(self) -> int | None:
        """The fencing token of this node's leadership; None while it does not lead."""
        lease = self._election.lease
        return lease.fencing_token if lease is not None and self.is_leader() else None

    @property
    def takes_part(self) -> bool:
        """Whether this node leads, or may lead later: it was started, and has not stopped or failed."""
        return self._is_here() and self._election.may_lead()

    def is_leader(self) -> bool:
        """Return whether this node leads: local, free, and False *before* another node can lead.

        Each call computes it from this node's monotonic clock. It is False in a forked child, because the parent leads.
        """
        return self._owner.is_current() and self._election.is_leader()

    def _lease_of_leader(self) -> Lease:
        lease = self._election.lease
        if lease is None or not self.is_leader():
            raise LeaseLostError(f"election {self.name!r}: this node does not lead; roll back")
        return lease

    def trusted_for(self) -> timedelta:
        """Return how long no other node can lead, even if no renewal succeeds; zero for a node without the lease.

        Each successful renewal makes it ``renew_deadline`` again, counted from before the request was sent. After
        ``resign()`` and ``stop()`` renewals continue while callbacks run: their work must end within this time.
        """
        term = self._election.term if self._owner.is_current() else None
        return timedelta(seconds=max(0.0, term.trusted_until - monotonic()) if term is not None else 0)

    def add_callbacks(
        self,
        on_started_leading: Callback | None = None,
        on_stopped_leading: Callback | None = None,
        on_renewed: Callback | None = None,
    ) -> None:
        """Add callbacks to the callbacks of the constructor.

        :param on_renewed: called after each renewal, unless its previous call still runs.
        :raises ConfigurationError: this elector cannot call a callback.
        """
        for callback in (on_started_leading, on_stopped_leading, on_renewed):
            self._check_callback(callback)
        self._on_started += [on_started_leading] if on_started_leading is not None else []
        self._on_stopped += [on_stopped_leading] if on_stopped_leading is not None else []
        self._on_renewed += [on_renewed] if on_renewed is not None else []

    def _check_callback(self, callback: object) -> None:
        if callback is not None and not callable(callback):
            raise ConfigurationError(f"a callback of an elector must be a function, not {quoted(callback)}")

    def resign(self) -> None:
        """If this node leads, let another node lead as soon as the callbacks have returned. Does not wait."""
        self._request("resign")

    def leave(self) -> bool:
        """Stop without waiting. Return False if this node does not take part in the election, or is leaving it."""
        takes_part = self.takes_part
        self._request("stop")
        return takes_part

    def __repr__(self) -> str:
        state = f"leads, term {self.term}" if self.is_leader() else "does not lead"
        return f"<{type(self).__name__} {self.name!r}: {self.holder!r} {state}>"

    # The election program

    def _create_election(self) -> Election:
        self._is_woken = False
        self._calls: set[CallbackCall] = set()  # without the calls of an earlier start, perhaps of the parent process
        self._election = Election(
            self._settings, monotonic, random_share, self._notify, self._call_renewed, is_busy=lambda: bool(self._calls)
        )
        self._owner = OwningProcess()  # last: is_leader() of a forked child must not see the parent's election
        return self._election

    def _notify(self, event: Event) -> None:
        try:
            self._emit(event)
        finally:  # even if a listener ends the program
            match event:
                case LeadershipStarted():
                    self._call(self._on_started, self._election.term)
                case LeadershipStopped():
                    self._call(self._on_stopped)
                case LeaderChanged(_, holder) if self._on_new_leader is not None:
                    self._call([functools.partial(self._on_new_leader, holder)])

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
        except BaseException:  # from a listener or callback; the error that ended the campaign matters more
            logger.exception("election %r: a callback could not be called", self.name)

    # Callbacks

    def _call_renewed(self) -> None:
        running = [call.callback for call in list(self._calls)]  # calls must not pile up; not all can be hashed
        self._call([callback for callback in self._on_renewed if callback not in running])

    def _call(self, callbacks: Iterable[Callback], term: Term | None = None) -> None:
        """Start to call the callbacks. Does not wait for them."""
        for callback in callbacks:
            call = CallbackCall(callback, term)
            self._calls.add(call)
            self._start_call(call)

    def _start_call(self, call: CallbackCall) -> None:
        raise NotImplementedError

    def _enter_call(self, call: CallbackCall) -> None:
        _current_calls.set(_current_calls.get() | {call})

    def _end_call(self, call: CallbackCall, error: BaseException | None = None) -> None:
        try:
            if error is not None:
                if self._election.fail(call.term, error):  # first: this node must not count as the leader any more
                    message = "election %r: on_started_leading (%r) failed; this node resigns, so that another can lead"
                else:
                    message = "election %r: callback %r failed"
                logger.error(message, self.name, call.callback, exc_info=error)
        finally:  # even if a log handler raises: while a call counts as running, the leader does not release
            self._calls.discard(call)
            self._wake()

    def _is_in_callback(self) -> bool:
        """Return whether the current code is part of a callback of this elector that has not returned yet."""
        return any(call in self._calls for call in _current_calls.get())

    # Waiting callers, among them the election program

    def _is_here(self) -> bool:
        """Return whether the elector was started in this process. It may have been stopped since."""
        return self._runner is not None and self._owner.is_current()

    def _is_decided(self) -> bool:
        """Return whether this node leads or never will, or resigns and waits for the calling callback."""
        election = self._election
        waits_for_caller = election.is_resigning() and self._is_in_callback()
        return self.is_leader() or not election.may_lead() or waits_for_caller

    def _has_taken_over(self) -> bool:
        """Return whether ``take_over()`` has nothing left to wait for."""
        return self._is_decided() or not self._election.is_taking_over()

    def _request(self, intent: Intent) -> None:
        if self._is_here():
            self._election.intents.add(intent)
            self._wake()

    def _wake(self) -> None:
        """End the wait of the election program."""
        self._is_woken = True
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        """Let all waiting callers check their conditions again."""
        raise NotImplementedError


def parse_timeout(timeout: Duration | None) -> float | None:
    """Return the seconds of a timeout; None: no limit."""
    return None if timeout is None else parse_duration(timeout, "timeout", zero=True).total_seconds()


class _LeaderOnly(Protocol):
    """The decorator of ``@leader_only(elector)``. The decorated function may return None."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


def leader_only(elector: Elector) -> _LeaderOnly:
    """Run the function on the leader only. On other nodes a call returns None at once, without a request to the store.

    ::

        @leader_only(elector)
        def tidy_up(): ...

    For ``def`` and ``async def``. A call checks once, when it begins, whether this node leads. A long task should call
    ``elector.is_leader()`` again, or send ``elector.term`` with its writes.

    It also works together with ``@scheduler_lock`` (in either order), ``attempt(…)``, ``repeat_every`` and the locks of
    ``ShedLockExecutor``: a follower does not take the lock. The skip has the reason "not_leader":
    ``function.attempt()`` returns ``Skipped(lock_name, "not_leader")``.

    :raises ConfigurationError: ``elector`` is not an elector.
    """
    if not isinstance(elector, Elector):
        raise ConfigurationError("@leader_only needs an elector: @leader_only(elector)")

    gate = not_leader(elector.is_leader)

    def decorate(function: Any) -> Any:
        if isinstance(function, staticmethod | classmethod):
            return type(function)(decorate(function.__func__))

        def skipped(*args: Any, **kwargs: Any) -> Skipped:
            return Skipped(function.__shedlock__.lock_name(function, args, kwargs), "not_leader")

        guarded = _call_if_passed(gate, function, lambda *_, **__: None)
        guarded.__shedlock_gates__ = (gate, *gates_of(function))
        if hasattr(function, "__shedlock__") and hasattr(function, "attempt"):  # it has a @scheduler_lock
            guarded.attempt = _call_if_passed(gate, function.attempt, skipped)
            bind_in_class(function, guarded)
        return guarded

    return cast(_LeaderOnly, decorate)


def _call_if_passed(gate: Gate, function: Callable[..., Any], refused: Callable[..., Any]) -> Any:
    """Return a function that calls ``function``, or ``refused`` if the gate refuses the call."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs) if gate() is None else refused(*args, **kwargs)

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if gate() is None else refused(*args, **kwargs)

    return call
