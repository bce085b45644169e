"""Faults of a holder's trust, and of the operations that all stores share."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import shedlock_py.model.lease
from shedlock_py import ProviderUnreachable
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.lease import Claim, Extension, Lease
from shedlock_py.providers.kit import StorePrograms, Undo, carry_out, locking
from tests.simulation.mutants.mutant import Change, mutate

_lease = partial(mutate, kind="locks", part="lease")
_operations = partial(mutate, kind="locks", part="operations")


@_lease(Claim, "granted")
def trust_counts_from_the_reply(granted: Change, claim: Claim, token: int | None) -> Lease:
    """The trust window of a new lease counts from the reply, not from before the request."""
    claim.restart_clock()
    lease: Lease = granted(claim, token)
    return lease


@_lease(locking, "extend")
def an_extension_counts_from_its_reply(extend: Change, programs: StorePrograms, lease: Lease, more: Any) -> Any:
    """The trust window of an extended lease counts from the reply."""
    extended = yield from extend(programs, lease, more)
    return extended and lease._begin_extension(more).granted()


@_lease(shedlock_py.model.lease, "trust_ends")
def the_margin_is_forgotten(original: Change, sent_at: float, lock_for: timedelta) -> float:
    """A lease is trusted for its whole length, although clocks run at different speeds."""
    return sent_at + lock_for.total_seconds()


@_lease(Lease, "_begin_release")
def a_release_ends_the_minimum_hold(_begin_release: Change, lease: Lease) -> timedelta:
    """A release frees the lock at once, also within lock_at_least_for."""
    _begin_release(lease)
    return timedelta(0)


@_lease(Lease, "_begin_release")
def the_minimum_hold_counts_from_the_release(_begin_release: Change, lease: Lease) -> timedelta:
    """The lock stays held for lock_at_least_for after the release."""
    _begin_release(lease)
    return lease.lock_at_least_for


@_lease(Lease, "_begin_extension")
def a_shorter_extension_is_trusted_longer(begin: Change, lease: Lease, lock_at_most_for: Duration) -> Extension:
    """After an extension that is shorter than the lease, the holder trusts the longer time."""
    shorter = parse_duration(lock_at_most_for)
    extension: Extension = begin(lease, max(shorter, lease.lock_at_most_for))
    extension.lock_for = max(shorter, lease.remaining_minimum())
    return extension


@_lease(Lease, "_begin_extension")
def a_shorter_extension_is_trusted_late(begin: Change, lease: Lease, lock_at_most_for: Duration) -> Extension:
    """While a shorter extension is under way, the holder trusts the old, longer time."""
    with pytest.MonkeyPatch.context() as meanwhile:
        meanwhile.setattr(shedlock_py.model.lease, "trust_ends", lambda sent_at, lock_for: lease.trusted_until)
        extension: Extension = begin(lease, lock_at_most_for)
    return extension


@_lease(Lease, "_lose")
def a_loss_is_ignored(lose: Change, lease: Lease) -> None:
    """The store replies that the lease is lost, and the holder trusts it to the end."""


# Operations


@_operations(locking, "undo_of")
def no_undo_is_sent(undo_of: Change, programs: StorePrograms, claim: Claim, **how: Any) -> Undo:
    """After a time limit or a cancellation nothing is undone."""
    undo: Undo = undo_of(programs, claim, **how)
    undo.program.close()
    return Undo(_nothing(), undo.useful_for)


def _nothing() -> Any:
    yield from ()
    return False


@mutate(locking, "undo_of", kind="fire times", part="operations")
def an_undo_keeps_the_fire_time(undo_of: Change, programs: StorePrograms, claim: Claim, **how: Any) -> Undo:
    """The undo of an acquire frees the lock, but its fire time stays used up: nobody runs it."""
    undo: Undo = undo_of(programs, claim, **how)
    undo.program.close()
    program = programs.undo_claim(claim.request.name, claim.locked_by, None)
    return Undo(carry_out(programs, "undo", claim.request.name, program), undo.useful_for)


@_operations(locking, "acquire")
def an_outage_passes_for_a_skip(acquire: Change, programs: StorePrograms, request: Any) -> Any:
    """An acquire without a reply reports a skip, not an error."""
    try:
        return (yield from acquire(programs, request))
    except ProviderUnreachable:
        return None


@_operations(locking, "acquire")
def an_unknown_outcome_passes_for_a_grant(acquire: Change, programs: StorePrograms, request: Any) -> Any:
    """An acquire without a reply is treated as granted."""
    claim = Claim(request, programs.clock, programs.new_claim_id)
    try:
        return (yield from acquire(programs, request))
    except ProviderUnreachable:
        return claim.granted(1)


@_operations(locking, "extend")
def a_failed_extension_passes_for_a_success(extend: Change, programs: StorePrograms, lease: Lease, more: Any) -> Any:
    """An extension without a reply moves the trust window."""
    try:
        return (yield from extend(programs, lease, more))
    except ProviderUnreachable:
        lease._begin_extension(more).granted()
        raise
