"""The table: made by one of many, with what it needs; and one that is there."""

from __future__ import annotations

import multiprocessing
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import LockRequest, ProviderError, provider_from_url
from shedlock_py.testing.contract.base import acquired
from tests.support.dynamodb import DynamoDBServer

PROCESSES = 8


def create(url: str, replies: Any) -> None:
    provider: Any = provider_from_url(url)
    try:
        provider.create_schema()
        lease = provider.acquire(LockRequest(f"job-{uuid4().hex}", "1m"))
        replies.put("" if lease else "not granted")
    except Exception as error:
        replies.put(repr(error))
    finally:
        provider.close()


def test_eight_processes_at_once(dynamodb_server: DynamoDBServer) -> None:
    table = f"new_{uuid4().hex[:8]}"
    context = multiprocessing.get_context("forkserver")  # a fork of this process may copy a lock that a thread holds
    replies = context.Queue()
    processes = [
        context.Process(target=create, args=(dynamodb_server.url(table) + "&timeout=60s", replies))
        for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    assert [replies.get(timeout=120) for _ in processes] == [""] * PROCESSES
    for process in processes:
        process.join()
    found = dynamodb_server.ask("DescribeTable", TableName=table)["Table"]
    assert found["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    ttl = dynamodb_server.ask("DescribeTimeToLive", TableName=table)["TimeToLiveDescription"]
    assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "expiresAt")
    dynamodb_server.ask("DeleteTable", TableName=table)


def test_a_table_that_is_there_is_used(dynamodb_server: DynamoDBServer, table: str) -> None:
    dynamodb_server.put(table, _id="java", lockUntil="2024-01-01T00:00:00.000Z", lockedAt="2024-01-01T00:00:00.000Z",
                        lockedBy="host")  # fmt: skip
    provider: Any = provider_from_url(dynamodb_server.url(table))
    provider.create_schema()
    provider.create_schema()
    acquired(provider, LockRequest("java", "1m"))
    provider.close()


def test_another_key_is_refused(dynamodb_server: DynamoDBServer) -> None:
    table = dynamodb_server.create_table(key="name")
    provider: Any = provider_from_url(dynamodb_server.url(table))
    with pytest.raises(ProviderError, match="another key") as caught:
        provider.create_schema()
    assert "another table" in (caught.value.hint or "")
    with pytest.raises(ProviderError, match="ValidationException"):
        provider.acquire(LockRequest("job", "1m"))
    provider.close()


def test_what_ttl_deletes(dynamodb_server: DynamoDBServer, table: str) -> None:
    """A month after the end of the lease, whenever that was written last."""
    provider: Any = provider_from_url(dynamodb_server.url(table))
    lease = acquired(provider, LockRequest("job", "1h"))
    for end, in_days in (("1h", 30), ("240h", 40)):
        provider.extend(lease, end)
        item = dynamodb_server.item(table, "job")
        assert item is not None
        record = provider.record("job")
        seconds = int(item["expiresAt"]["N"]) - record.locked_at.timestamp()
        assert in_days <= seconds / 86400 < in_days + 0.1
    provider.close()
