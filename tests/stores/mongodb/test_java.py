"""One collection together with ShedLock for Java: each side excludes the other.

This file re-creates the commands of ShedLock's provider for MongoDB, which uses the JVM's clock.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from shedlock_py import LockProvider, LockRequest, ProviderError
from shedlock_py.model.lease import Claim
from shedlock_py.providers.mongodb.commands import take_over
from tests.stores.mongodb.stores import SLOW_SERVER, Store
from tests.support.locks import acquired, record_of
from tests.support.polling import wait_until

HOST = "java-host.example.org"
FIRE_TIME = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass
class Java:
    """A replica on the JVM. Its holder is its host name, as in ShedLock."""

    documents: Collection[dict[str, Any]]

    def lock(self, name: str, at_most: float = 60) -> bool:
        """Update an expired record, or insert a record. A held lock makes the insert a duplicate."""
        now = datetime.now(UTC)
        times = {"lockUntil": now + timedelta(seconds=at_most), "lockedAt": now}
        try:
            self.documents.find_one_and_update(
                {"_id": name, "lockUntil": {"$lte": now}}, {"$set": {**times, "lockedBy": HOST}}, upsert=True
            )
        except DuplicateKeyError:
            return False
        return True

    def unlock(self, name: str, at_least: float = 0) -> None:
        """Unlock by name only."""
        until = datetime.now(UTC) + timedelta(seconds=at_least)
        self.documents.find_one_and_update({"_id": name}, {"$set": {"lockUntil": until}})

    def extend(self, name: str, at_most: float) -> bool:
        now = datetime.now(UTC)
        found = self.documents.find_one_and_update(
            {"_id": name, "lockUntil": {"$gt": now}, "lockedBy": HOST},
            {"$set": {"lockUntil": now + timedelta(seconds=at_most)}},
        )
        return found is not None


@pytest.fixture
def java(store: Store) -> Java:
    return Java(store.documents)


@pytest.fixture
def provider(store: Store) -> LockProvider:
    return store.provider(**SLOW_SERVER)


def test_java_reads_our_records(provider: LockProvider, java: Java, name: str) -> None:
    lease = acquired(provider, name, fire_time=FIRE_TIME)
    document = java.documents.find_one({"_id": name})
    assert document is not None
    assert list(document) == ["_id", "lockUntil", "lockedAt", "lockedBy", "fencingToken", "lastFireTime"]
    assert document["lockUntil"] - document["lockedAt"] == timedelta(minutes=1)
    assert abs(document["lockedAt"] - datetime.now(UTC)) < timedelta(minutes=1)
    assert document["lockedBy"] == lease.locked_by
    assert document["fencingToken"] == lease.fencing_token
    assert document["lastFireTime"] == FIRE_TIME.timestamp() * 1_000_000
    types = [{"$type": f"${field}"} for field in document]
    (found,) = java.documents.aggregate([{"$match": {"_id": name}}, {"$project": {"types": types}}]).to_list()
    assert found["types"] == ["string", "date", "date", "string", "long", "long"]


def test_i1_theirs_keeps_us_out(provider: LockProvider, java: Java, name: str) -> None:
    assert java.lock(name)
    assert record_of(provider, name).is_released is None, "Java does not write it"
    before = java.documents.find_one({"_id": name})
    for fire_time in (None, FIRE_TIME):
        assert provider.acquire(LockRequest(name, "1m", fire_time=fire_time)) is None
    assert java.documents.find_one({"_id": name}) == before
    record = record_of(provider, name)
    assert (record.locked_by, record.holder, record.is_held) == (HOST, HOST, True)
    assert (record.fencing_token, record.last_fire_time) == (None, None)
    assert 50 < record.remaining.total_seconds() <= 60
    assert java.extend(name, 300)
    assert 290 < record_of(provider, name).remaining.total_seconds() <= 300
    assert provider.acquire(LockRequest(name, "1m")) is None
    java.unlock(name)
    acquired(provider, name, fire_time=FIRE_TIME)


def test_i1_ours_keeps_them_out(provider: LockProvider, java: Java, name: str) -> None:
    lease = acquired(provider, name)
    assert not java.lock(name)
    assert not java.extend(name, 60)
    assert provider.extend(lease, "2m") is lease
    assert not java.lock(name)
    assert provider.release(lease) is True
    assert java.lock(name)
    assert provider.release(lease) is False
    assert provider.extend(lease, "1m") is None
    assert record_of(provider, name).is_held


def test_i4_each_keeps_to_the_minimum_hold_of_the_other(provider: LockProvider, java: Java, name: str) -> None:
    lease = acquired(provider, name, lock_at_least_for="1m")
    assert provider.release(lease)
    assert not java.lock(name)
    assert java.lock(f"{name}-2")
    java.unlock(f"{name}-2", at_least=60)
    assert provider.acquire(LockRequest(f"{name}-2", "1m")) is None


def test_i3_each_gets_what_the_other_left(provider: LockProvider, java: Java, name: str) -> None:
    assert java.lock(name, at_most=0.15)
    wait_until(lambda: provider.acquire(LockRequest(name, "150ms")), what="the end of Java's lock")
    wait_until(lambda: java.lock(name), what="the end of Python's lease")
    assert provider.force_release(name)
    assert not record_of(provider, name).is_held


def test_i2_a_stale_lease_does_not_touch_theirs(provider: LockProvider, java: Java, name: str) -> None:
    lease = acquired(provider, name, "100ms")
    wait_until(lambda: java.lock(name), what="the end of Python's lease")
    assert provider.release(lease) is False
    assert record_of(provider, name).locked_by == HOST
    taken = provider.take_over(LockRequest(name, "1m"))
    assert not java.extend(name, 300)
    assert provider.release(taken) is True


def test_i2_an_operator_does_not_touch_a_later_lock_of_theirs(provider: Any, java: Java, name: str) -> None:
    """The same host locks again; the holder and the token stay the same."""
    assert java.lock(name)
    record = record_of(provider, name)
    assert provider.force_release(name) is True
    assert java.lock(name)
    assert provider.force_release(name, record) is False
    with pytest.raises(ProviderError, match="changed since it was read"):
        provider.take_over(LockRequest(name, "1m"), record)
    assert record_of(provider, name).is_held


def test_their_unlock_goes_by_name_and_frees_ours(provider: LockProvider, java: Java, name: str) -> None:
    """ShedLock documents this. Our holder notices the loss and does no harm."""
    lease = acquired(provider, name)
    java.unlock(name)
    assert provider.extend(lease, "1m") is None
    assert provider.release(lease) is False


def test_i7_tokens_grow_across_theirs(provider: LockProvider, java: Java, name: str) -> None:
    tokens = []
    for number in range(6):
        lease = acquired(provider, name)
        tokens.append(lease.fencing_token or 0)
        assert provider.release(lease)
        if number == 3:
            java.documents.delete_one({"_id": name})
        assert java.lock(name)
        java.unlock(name)
    assert tokens == sorted(set(tokens))
    assert all(token % 1000 == 0 for token in tokens[::4]), "the first on a record without a token is renumbered"


def test_i11_their_writes_keep_the_fire_time(provider: LockProvider, java: Java, name: str) -> None:
    assert provider.release(acquired(provider, name, fire_time=FIRE_TIME))
    assert java.lock(name)
    java.unlock(name)
    assert provider.acquire(LockRequest(name, "1m", fire_time=FIRE_TIME)) is None
    acquired(provider, name, fire_time=FIRE_TIME + timedelta(microseconds=1))


def test_their_writes_keep_the_runs_and_are_none(store: Store, java: Java, name: str) -> None:
    keeper: Any = store.provider(**SLOW_SERVER, history=3)
    assert keeper.release(acquired(keeper, name))
    assert java.lock(name)
    assert java.extend(name, 300)
    assert keeper.acquire(LockRequest(name, "1m")) is None
    java.unlock(name)
    lease = acquired(keeper, name)
    java.unlock(name)
    assert keeper.release(lease) is False
    assert [run.outcome for run in keeper.runs(name)] == ["lost", "ok"]


def test_i2_a_late_copy_of_a_take_over_takes_nothing_from_them(
    provider: LockProvider, java: Java, store: Store, name: str
) -> None:
    """ShedLock for Java does not change the fencing token, so the token alone does not identify the lock."""
    assert provider.release(acquired(provider, name))
    before = record_of(provider, name)
    late = take_over(Claim(LockRequest(name, "1h"), time.monotonic), before, timedelta(minutes=5))
    assert java.lock(name)
    update = store.documents.find_one_and_update(**late.arguments)
    assert update is not None
    record = record_of(provider, name)
    assert (record.locked_by, record.fencing_token, record.is_held) == (HOST, before.fencing_token, True)
