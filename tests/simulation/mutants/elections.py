"""Faults of leader election."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from shedlock_py import LockRecord
from shedlock_py.election.demotion import Demotion
from shedlock_py.election.observation import Observation
from shedlock_py.election.program import PENDING, Election
from shedlock_py.lease import Lease
from tests.simulation.mutants.mutant import Change, mutate

FOR_EVER = float("inf")

_election = partial(mutate, Election, kind="elections", part="election")
_handed = partial(mutate, Election, kind="handovers", part="election")
_observed = partial(mutate, Observation, kind="observed", part="election")


@_handed("is_leader")
def leadership_is_a_flag(is_leader: Change, election: Election) -> bool:
    """A node leads until its thread notices that it does not: a paused one leads on."""
    term = election._term
    return term is not None and term.is_leading and election.may_lead() and "resign" not in election.intents


@_election("__post_init__")
def the_renew_deadline_is_not_enforced(post_init: Change, election: Election) -> None:
    """A leader that cannot renew its lease leads on."""
    post_init(election)
    election._deadline = 20 * election._lease_seconds


@_election("__post_init__")
def a_leader_trusts_its_lease_too_long(post_init: Change, election: Election) -> None:
    """A leader trusts its lease for 110 % of lease_duration: the inequality of the settings is not checked."""
    post_init(election)
    election._deadline = 1.1 * election._lease_seconds


@_handed("_begin")
def a_term_counts_from_the_reply(
    begin: Change, election: Election, lease: Lease, requested_at: float, **how: Any
) -> Any:
    """A new leader trusts its lease from the reply, not from before the request."""
    return begin(election, lease, election.clock(), **how)


@_election("_renew_if_due")
def a_renewal_counts_from_its_reply(renew: Change, election: Election, term: Any) -> Any:
    """A leader trusts its lease from the reply to the renewal, not from before the request."""
    before = term.trusted_until
    yield from renew(election, term)
    if term.trusted_until != before:
        term.trusted_until = election.clock() + election._deadline


@_handed("_begin")
def a_node_leads_at_once(begin: Change, election: Election, lease: Lease, requested_at: float, **how: Any) -> Any:
    """After a take-over a node leads at once, while the former leader still trusts its lease."""
    return begin(election, lease, requested_at, leads_from=requested_at)


@_handed("_renew_if_due")
def no_reply_passes_for_a_renewal(renew: Change, election: Election, term: Any) -> Any:
    """A renewal without a reply moves the trust window."""
    program = renew(election, term)
    try:
        command = next(program)
        while True:
            requested_at = election.clock()
            reply = yield command
            if reply is PENDING:
                term.trusted_until = requested_at + election._deadline
            command = program.send(reply)
    except StopIteration:
        return


@_election("_renew_if_due")
def a_failed_renewal_passes_for_a_success(renew: Change, election: Election, term: Any) -> Any:
    """A renewal that the store did not confirm, because of an error, moves the trust window."""
    program = renew(election, term)
    try:
        command = next(program)
        while True:
            requested_at = election.clock()
            try:
                reply = yield command
            except Exception as error:
                term.trusted_until = requested_at + election._deadline
                command = program.throw(error)
            else:
                command = program.send(reply)
    except StopIteration:
        return


@_handed("__post_init__")
def a_leader_resigns_before_its_callbacks_end(post_init: Change, election: Election) -> None:
    """A leader releases its lease while on_stopped_leading still works."""
    post_init(election)
    election.is_busy = lambda: False


@_handed("_resign")
def a_node_that_resigned_never_stands_again(resign: Change, election: Election, term: Any) -> Any:
    """After a resignation a node is not a candidate any more: in the end there is no leader."""
    yield from resign(election, term)
    if election._term is None:
        election._rests_until = FOR_EVER


@_handed("_follow")
def an_error_ends_the_candidacy(follow: Change, election: Election) -> Any:
    """After one error of the store a follower never reads the record again."""
    failures = election._failures
    yield from follow(election)
    if election._failures > failures:
        election._rests_until = FOR_EVER


@mutate(Demotion, "cooldown_of", kind="handovers", part="election")
def a_demotion_is_ignored(cooldown_of: Change, demotion: Demotion, holder: str) -> timedelta:
    """A demoted node is a candidate at once, not after its cooldown."""
    return timedelta(0)


@_observed("is_free")
def observed_takeover_uses_the_stores_clock(is_free: Change, observation: Observation) -> bool:
    """With takeover="observed" a follower acquires a lease that is over by the store's clock."""
    return observation.record is None or not observation.record.is_held


@_observed("_was_released")
def a_jump_passes_for_a_release(
    was_released: Change, observation: Observation, before: LockRecord, record: LockRecord, passed: float
) -> bool:
    """A lease that a jump of the store's clock has ended passes for one that was released."""
    return not record.is_held and before.locked_by == record.locked_by


@_observed("is_overdue")
def a_silent_leader_is_waited_for(is_overdue: Change, observation: Observation) -> bool:
    """With takeover="observed", a dead leader whose lease the store keeps for an hour is waited for."""
    return False if observation.record is not None and observation.record.is_held else is_overdue(observation)
