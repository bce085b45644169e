"""create_schema(): many processes make one table, with all its settings, or find it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import LockRequest, ProviderError, provider_from_url
from tests.support.dynamodb import DynamoDBServer
from tests.support.locks import acquired, opened, record_of
from tests.support.workers import workers


def create(url: str) -> bool:
    with opened(url) as provider:
        provider.create_schema()
        return provider.acquire(LockRequest(f"job-{uuid4().hex}", "1m")) is not None


@pytest.mark.slow("starts ten processes")
def test_ten_processes_create_it_at_once(dynamodb_server: DynamoDBServer) -> None:
    table = f"new_{uuid4().hex[:8]}"
    with workers() as call_all:
        assert set(call_all(create, dynamodb_server.url(table) + "&timeout=60s")) == {True}
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
    acquired(provider, "java")
    provider.close()


def test_a_table_with_another_key_is_refused(dynamodb_server: DynamoDBServer) -> None:
    table = dynamodb_server.create_table(key="name")
    provider: Any = provider_from_url(dynamodb_server.url(table))
    with pytest.raises(ProviderError, match="another key") as caught:
        provider.create_schema()
    assert "another table" in (caught.value.hint or "")
    with pytest.raises(ProviderError, match="ValidationException"):
        provider.acquire(LockRequest("job", "1m"))
    provider.close()


def test_ttl_deletes_a_record_a_month_after_the_end_of_its_lease(
    dynamodb_server: DynamoDBServer, table: str, name: str
) -> None:
    provider: Any = provider_from_url(dynamodb_server.url(table))
    lease = acquired(provider, name, "1h")
    for end, in_days in (("1h", 30), ("240h", 40)):
        provider.extend(lease, end)
        item = dynamodb_server.item(table, name)
        assert item is not None
        record = record_of(provider, name)
        seconds = int(item["expiresAt"]["N"]) - record.locked_at.timestamp()
        assert in_days <= seconds / 86400 < in_days + 0.1
    provider.close()
