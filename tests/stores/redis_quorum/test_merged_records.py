"""Records as a majority of the servers has them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shedlock_py import LockProvider, LockRecord, LockRequest
from tests.stores.redis_quorum.quorums import NAME, Quorum, acquired, outcome
from tests.support import locks

pytestmark = pytest.mark.usefixtures("long_grace")


def record_of(provider: LockProvider) -> LockRecord:
    record = locks.record_of(provider, NAME)
    assert provider.records() == [record]
    return record


def leave_remnant(quorum: Quorum) -> LockProvider:
    """Leave a lease of a dead claim on a minority."""
    provider = quorum.provider()
    lease = acquired(provider)
    for number in range(quorum.majority - 1, quorum.size):
        quorum.send(number, "DEL", quorum.key())
    del lease
    return provider


def test_a_lease_on_a_minority_is_not_shown_as_held(quorum: Quorum, kind: str) -> None:
    leave_remnant(quorum)
    provider = quorum.provider(kind=kind)
    assert provider.record(NAME) is None, "a majority has no record"
    assert provider.records() == []
    former = acquired(provider)
    assert record_of(provider).fencing_token == former.fencing_token
    assert record_of(provider).locked_by == former.locked_by
    assert record_of(provider).is_held
    assert provider.release(former)
    assert not record_of(provider).is_held
    assert outcome(provider) == "lease"


def test_a_lease_on_a_minority_beside_older_records_is_not_shown(quorum: Quorum, kind: str) -> None:
    provider = quorum.provider(kind=kind)
    former = acquired(provider)
    assert provider.release(former)
    for number in range(quorum.majority - 1):
        until = quorum.now(number) + 60_000_000
        quorum.send(number, "HSET", quorum.key(), "locked_by", "dead#1", "lock_until", until, "fencing_token", until)
    record = record_of(provider)
    assert (record.locked_by, record.is_held) == (former.locked_by, False)
    assert not provider.force_release(NAME), "it was not held"
    quorum.wait_until_free()  # the remnant is gone, too


def test_records_are_the_same_without_a_minority(quorum: Quorum, kind: str) -> None:
    away = range(quorum.size - quorum.majority)
    lease = acquired(quorum.provider(kind=kind))
    provider = quorum.provider(kind=kind, without=away)
    assert record_of(provider).is_held
    assert record_of(provider).locked_by == lease.locked_by
    assert provider.release(lease)
    assert not record_of(provider).is_held
    # A bare majority has the lease, and one of its servers is away: a reader cannot know better.
    lease = acquired(provider)
    rest = quorum.provider(kind=kind, without=[quorum.size - 1])
    assert record_of(rest).is_held
    assert record_of(rest).locked_by == lease.locked_by


def test_force_release_and_prune_work_without_a_minority(quorum: Quorum, kind: str) -> None:
    provider = quorum.provider(kind=kind, without=range(quorum.size - quorum.majority))
    lease = acquired(quorum.provider(kind=kind))
    assert provider.prune(timedelta(0)) == 0, "it is held"
    assert provider.force_release(NAME)
    assert not provider.force_release(NAME)
    assert provider.extend(lease, "1m") is None
    assert not record_of(provider).is_held
    assert provider.prune(timedelta(hours=1)) == 0
    assert provider.prune(timedelta(0)) == 1
    assert provider.record(NAME) is None
    # The servers that were away still say that it is held: they are outvoted.
    assert quorum.is_held(0)
    assert outcome(quorum.provider(kind=kind)) == "lease"


def test_prune_spares_a_record_that_is_being_voted_on(quorum: Quorum) -> None:
    provider = quorum.provider()
    assert provider.release(acquired(provider))
    hand = quorum.by_hand()
    program, replies = hand.votes(LockRequest(NAME, "1m"), range(quorum.size))
    assert provider.prune(timedelta(0)) == 0
    confirmed = hand.on(range(quorum.size), program.send(replies))
    assert confirmed == [1] * quorum.size
    program.close()
