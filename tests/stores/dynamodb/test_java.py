"""One table together with ShedLock for Java: each side excludes the other.

This file re-creates the commands of ShedLock's provider for DynamoDB, which uses the JVM's clock.
"""

from __future__ import annotations

import json
import urllib.error
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderError
from shedlock_py.testing.contract.base import eventually
from tests.support.dynamodb import DynamoDBServer
from tests.support.locks import acquired, record_of

HOST = "java-host.example.org"


def iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"


@dataclass
class Java:
    """A replica on the JVM. Its holder is its host name, as in ShedLock."""

    server: DynamoDBServer
    table: str

    def lock(self, name: str, at_most: float = 60) -> bool:
        now = datetime.now(UTC)
        values = {":lockUntil": iso(now + timedelta(seconds=at_most)), ":lockedAt": iso(now), ":lockedBy": HOST}
        try:
            self._update(
                name,
                values,
                UpdateExpression="set lockUntil = :lockUntil, lockedAt = :lockedAt, lockedBy = :lockedBy",
                ConditionExpression="lockUntil <= :lockedAt or attribute_not_exists(lockUntil)",
            )
        except urllib.error.HTTPError as error:
            with error:
                if not json.load(error)["__type"].endswith("ConditionalCheckFailedException"):
                    raise
            return False
        return True

    def unlock(self, name: str) -> None:
        """Unlock by name only."""
        values = {":lockUntil": iso(datetime.now(UTC))}
        self._update(name, values, UpdateExpression="set lockUntil = :lockUntil")

    def _update(self, name: str, values: dict[str, str], **expressions: str) -> None:
        self.server.ask(
            "UpdateItem",
            TableName=self.table,
            Key={"_id": {"S": name}},
            ExpressionAttributeValues={key: {"S": value} for key, value in values.items()},
            **expressions,
        )


@pytest.fixture
def java(dynamodb_server: DynamoDBServer, table: str) -> Java:
    return Java(dynamodb_server, table)


def test_i1_each_side_keeps_the_other_out(provider: LockProvider, java: Java, name: str) -> None:
    lease = acquired(provider, name)
    assert not java.lock(name)
    assert provider.release(lease)
    assert java.lock(name), "a lock that was released is free at once, also for Java"
    assert provider.acquire(LockRequest(name, "1m")) is None
    record = record_of(provider, name)
    assert (record.holder, record.is_held, record.is_released) == (HOST, True, None)
    assert provider.release(lease) is False
    java.unlock(name)
    successor = eventually(lambda: provider.acquire(LockRequest(name, "1m")))
    assert (successor.fencing_token or 0) > (lease.fencing_token or 0), "Java has left the token alone"


def test_i1_a_released_lock_that_java_took_is_not_free(provider: LockProvider, java: Java, name: str) -> None:
    """The record says that our acquisition was released. Java ignores this field and leaves it there."""
    lease = acquired(provider, name)
    provider.release(lease)
    assert java.lock(name)
    item = java.server.item(java.table, name)
    assert item is not None
    assert item["releasedBy"]["S"] == lease.locked_by
    assert provider.acquire(LockRequest(name, "1m")) is None
    assert provider.force_release(name) is True
    acquired(provider, name)


def test_i1_a_lock_that_an_operator_freed_and_java_took_again_is_not_free(
    provider: LockProvider, java: Java, name: str
) -> None:
    """Java's holder is its host, so it stays the same after a restart."""
    assert java.lock(name)
    assert provider.force_release(name) is True
    assert record_of(provider, name).is_held is False
    assert java.lock(name)
    assert record_of(provider, name).is_held
    assert provider.acquire(LockRequest(name, "1m")) is None
    assert provider.force_release(name) is True
    acquired(provider, name)


def test_i2_an_operator_does_not_touch_a_later_lock_of_theirs(provider: LockProvider, java: Java, name: str) -> None:
    """The same host locks again; the holder and the token stay the same."""
    assert java.lock(name)
    record = record_of(provider, name)
    java.unlock(name)
    assert eventually(lambda: java.lock(name))
    assert record_of(provider, name).locked_at > record.locked_at
    assert provider.force_release(name, record) is False
    with pytest.raises(ProviderError, match="changed since it was read"):
        provider.take_over(LockRequest(name, "1m"), record)
    assert record_of(provider, name).is_held


def test_i1_a_lock_that_0_1_0_freed_and_java_took_again_is_not_free(
    provider: LockProvider, java: Java, dynamodb_server: DynamoDBServer, table: str, name: str
) -> None:
    past = "2024-01-01T00:00:00.000Z"
    dynamodb_server.put(table, _id=name, lockUntil=past, lockedAt=past, lockedBy=HOST, releasedBy=HOST)
    assert java.lock(name)
    assert record_of(provider, name).is_held
    assert provider.acquire(LockRequest(name, "1m")) is None


def test_i6_a_lock_of_ours_that_java_unlocked_is_lost(provider: LockProvider, java: Java, name: str) -> None:
    """Java unlocks by name only, after a task that took longer than its lock."""
    lease = acquired(provider, name)
    assert provider.extend(lease, "1m") is lease
    java.unlock(name)
    eventually(lambda: not record_of(provider, name).is_held)  # the Date header is cut to seconds
    assert provider.extend(lease, "1m") is None
    assert provider.release(lease) is False


def test_an_item_without_a_version_can_be_extended(provider: LockProvider, java: Java, name: str) -> None:
    """For example a pause from before the update."""
    lease = acquired(provider, name)
    java.server.ask(
        "UpdateItem", TableName=java.table, Key={"_id": {"S": name}}, UpdateExpression="REMOVE leaseVersion"
    )
    lease._note = None
    assert provider.extend(lease, "2m") is lease
    item = java.server.item(java.table, name)
    assert item is not None
    assert item["leaseVersion"] == {"N": "1"}
    assert provider.release(lease) is True


def test_java_reads_our_items(provider: LockProvider, java: Java, name: str) -> None:
    lease = acquired(provider, name)
    item = java.server.item(java.table, name)
    assert item is not None
    assert (item["_id"], item["lockedBy"]) == ({"S": name}, {"S": lease.locked_by})
    for attribute in ("lockUntil", "lockedAt"):
        text = item[attribute]["S"]
        assert text == iso(datetime.fromisoformat(text)), "milliseconds: the texts sort by time"


@pytest.mark.slow("waits for the end of six leases")
def test_i1_times_may_have_any_number_of_digits(
    provider: LockProvider, dynamodb_server: DynamoDBServer, table: str
) -> None:
    """Texts of other lengths do not sort by time: a late end looks early, and the reverse."""
    until = datetime.now(UTC) + timedelta(seconds=2)
    ends = [f"{until:%Y-%m-%dT%H:%M:%S}{part}Z" for part in ("", ".5", ".25", ".123456", ".123456789", ".999999")]
    for end in ends:
        dynamodb_server.put(table, _id=end, lockUntil=end, lockedAt="2024-01-01T00:00:00Z", lockedBy=HOST)
    for end in ends:
        lease = eventually(lambda end=end: provider.acquire(LockRequest(end, "1m")))  # type: ignore[misc]  # a lambda
        assert datetime.now(UTC) >= datetime.fromisoformat(end)
        assert record_of(provider, end).locked_by == lease.locked_by


def test_i1_a_take_over_from_java_keeps_java_out(provider: LockProvider, java: Java, name: str) -> None:
    assert java.lock(name)
    lease = provider.take_over(LockRequest(name, "1m"))
    assert not java.lock(name)
    assert provider.release(lease)
