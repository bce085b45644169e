"""Faults of leader election.

A mutant changes the replies to the program, or its term after a reply: a generator around the real ``run`` replaces
``run``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import shedlock_py.election.program
from shedlock_py import LockRecord
from shedlock_py.election.demotion import Demotion
from shedlock_py.election.observation import Observation
from shedlock_py.election.program import PENDING, Command, Do, Election, Term
from tests.simulation.mutants.mutant import Change, Mutant, add, mutate

_election = partial(mutate, Election, kind="elections", part="election")
_handed = partial(mutate, Election, kind="handovers", part="election")
_observed = partial(mutate, Observation, kind="observed", part="election")


def _unchanged(command: Command, reply: Any) -> Any:
    return reply


def _run(
    run: Change,
    election: Election,
    replied: Callable[[Command, Any], Any] = _unchanged,
    continued: Callable[[Term | None, float], None] = lambda term, trusted_until: None,
) -> Any:
    """Run the program of ``election``, with a fault in its replies or after them.

    :param replied: gets a command and the reply to it, or the error, and returns the reply for the program.
    :param continued: called after the program got a reply, with the term and the trust before.
    """
    program = run(election)
    try:
        command = next(program)
        while True:
            try:
                reply = yield command
            except Exception as error:
                reply = error
            reply = replied(command, reply)
            term = election.term
            trusted_until = term.trusted_until if term is not None else 0.0
            command = program.throw(reply) if isinstance(reply, Exception) else program.send(reply)
            continued(term, trusted_until)
    except StopIteration:
        return


def _is(operation: str, command: Command) -> bool:
    return isinstance(command, Do) and command.operation == operation


class NeverFree(Observation):
    """The observation of a node that is not a candidate any more."""

    def is_free(self) -> bool:
        return False

    def is_overdue(self) -> bool:
        return False


def _abstain(election: Election) -> None:
    election.observation = NeverFree(election.settings, election.clock)


def _with_deadline(election: Election, leases: float) -> None:
    durations = election.settings.durations
    durations = replace(durations, renew_deadline=leases * durations.lease_duration)
    election.settings = replace(election.settings, durations=durations)


@_handed("is_leader")
def leadership_is_a_flag(is_leader: Change, election: Election) -> bool:
    """A node leads until its thread notices that it does not lead: a paused node leads on."""
    term = election.term
    return term is not None and term.is_leading and election.may_lead() and "resign" not in election.intents


@_election("__post_init__")
def the_renew_deadline_is_not_enforced(post_init: Change, election: Election) -> None:
    """A leader that cannot renew its lease leads on."""
    _with_deadline(election, 20)
    post_init(election)


@_election("__post_init__")
def a_leader_trusts_its_lease_too_long(post_init: Change, election: Election) -> None:
    """A leader trusts its lease for 110 % of lease_duration: the inequality of the settings is not checked."""
    _with_deadline(election, 1.1)
    post_init(election)


@_handed("run")
def a_term_counts_from_the_reply(run: Change, election: Election) -> Any:
    """A new leader trusts its lease from the reply, not from before the request."""

    def continued(before: Term | None, _: float) -> None:
        if election.term is not None and election.term is not before:
            _trust_from_now(election, election.term)

    return _run(run, election, continued=continued)


@_election("run")
def a_renewal_counts_from_its_reply(run: Change, election: Election) -> Any:
    """A leader trusts its lease from the reply to the renewal, not from before the request."""

    def continued(term: Term | None, trusted_until: float) -> None:
        if term is not None and term is election.term and term.trusted_until != trusted_until:
            _trust_from_now(election, term)

    return _run(run, election, continued=continued)


def _trust_from_now(election: Election, term: Term) -> None:
    term.trusted_until = election.clock() + election.settings.durations.renew_deadline.total_seconds()


add(
    Mutant(
        "a node leads at once",
        "election",
        "After a take-over a node leads at once, while the former leader still trusts its lease.",
        "handovers",
        shedlock_py.election.program,
        "DRIFT_FACTOR",
        0.0,
    )
)


@_handed("run")
def no_reply_passes_for_a_renewal(run: Change, election: Election) -> Any:
    """A renewal without a reply moves the trust window."""

    def replied(command: Command, reply: Any) -> Any:
        return election.lease if _is("extend", command) and reply is PENDING else reply

    return _run(run, election, replied)


@_election("run")
def a_failed_renewal_passes_for_a_success(run: Change, election: Election) -> Any:
    """A renewal that the store did not confirm, because of an error, moves the trust window."""

    def replied(command: Command, reply: Any) -> Any:
        return election.lease if _is("extend", command) and isinstance(reply, Exception) else reply

    return _run(run, election, replied)


@_handed("__post_init__")
def a_leader_resigns_before_its_callbacks_end(post_init: Change, election: Election) -> None:
    """A leader releases its lease while on_stopped_leading still works."""
    post_init(election)
    election.is_busy = lambda: False


@_handed("fail")
def a_leader_goes_on_without_its_work(fail: Change, election: Election, term: Term | None, error: Exception) -> bool:
    """After an exception of on_started_leading the node leads on."""
    return False


@_handed("run")
def a_node_that_resigned_never_stands_again(run: Change, election: Election) -> Any:
    """After a resignation a node is not a candidate any more: in the end there is no leader."""

    def replied(command: Command, reply: Any) -> Any:
        if isinstance(command, Do) and command.operation == "release" and not command.args[0].is_lost():
            _abstain(election)
        return reply

    return _run(run, election, replied)


@_handed("run")
def an_error_ends_the_candidacy(run: Change, election: Election) -> Any:
    """After one error of the store a follower is not a candidate any more."""

    def replied(command: Command, reply: Any) -> Any:
        if isinstance(reply, Exception) and election.term is None:
            _abstain(election)
        return reply

    return _run(run, election, replied)


@mutate(Demotion, "cooldown_of", kind="handovers", part="election")
def a_demotion_is_ignored(cooldown_of: Change, demotion: Demotion, holder: str) -> timedelta:
    """A demoted node is a candidate at once, not after its cooldown."""
    return timedelta(0)


@_observed("is_free")
def observed_takeover_uses_the_stores_clock(is_free: Change, observation: Observation) -> bool:
    """With takeover="observed" a follower acquires a lease that is over by the store's clock."""
    return observation.record is None or not observation.record.is_held


@_observed("was_released")
def a_jump_passes_for_a_release(
    was_released: Change, observation: Observation, before: LockRecord, record: LockRecord, passed: float
) -> bool:
    """A lease that a jump of the store's clock has ended passes for a released lease."""
    return not record.is_held and before.locked_by == record.locked_by


@_observed("is_overdue")
def a_silent_leader_is_waited_for(is_overdue: Change, observation: Observation) -> bool:
    """With takeover="observed", nodes wait for a dead leader if the store keeps its lease for an hour."""
    return False if observation.record is not None and observation.record.is_held else is_overdue(observation)
