"""The bucket, round trips, and keys that somebody else has written or deleted."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import uuid4

import pytest
from nats.js import JetStreamContext

from shedlock_py import LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.clients import both_clients_in_full
from tests.stores.nats.conftest import Open
from tests.support.locks import acquired, record_of
from tests.support.logs import warnings_of
from tests.support.nats import NatsServer


def stored(server: NatsServer, bucket: str, key: str) -> dict[str, Any]:
    async def read(jetstream: JetStreamContext) -> bytes | None:
        return (await (await jetstream.key_value(bucket)).get(key, validate_keys=False)).value

    found: dict[str, Any] = json.loads(server.run(read))
    return found


def put(server: NatsServer, bucket: str, key: str, value: bytes) -> None:
    async def write(jetstream: JetStreamContext) -> None:
        await (await jetstream.key_value(bucket)).put(key, value)

    server.run(write)


def test_a_key_has_the_fields_of_the_documentation(
    nats_server: NatsServer, bucket: str, open_url: Open, name: str
) -> None:
    provider = open_url(nats_server.url(bucket))
    lease = acquired(provider, name)
    record = stored(nats_server, bucket, name)
    assert list(record) == ["locked_by", "locked_at", "lock_until", "fencing_token", "last_fire_time", "is_released"]
    assert (record["locked_by"], record["fencing_token"]) == (lease.locked_by, lease.fencing_token)
    provider.release(lease)
    assert stored(nats_server, bucket, name)["free"] is True


@both_clients_in_full
def test_round_trips_of_a_job(nats_server: NatsServer, bucket: str, open_url: Open, name: str) -> None:
    """The request for the time travels with each command."""
    with TcpProxy(nats_server.address) as proxy:
        provider = open_url(nats_server.url(bucket, via=proxy.address))
        provider.release(acquired(provider, name))
        counted: set[tuple[str, int]] = set()

        def count(operation: str) -> None:
            counted.add((operation, proxy.round_trips))
            proxy.reset()

        for _ in range(6):
            proxy.reset()
            lease = acquired(provider, name)
            count("acquire")
            assert provider.acquire(LockRequest(name, "1m")) is None
            count("skip")
            assert provider.extend(lease, "2m") is lease
            count("extend")
            assert provider.release(lease)
            count("release")
        assert counted == {("acquire", 2), ("skip", 1), ("extend", 1), ("release", 1)}


def test_a_key_that_was_deleted_by_hand_can_be_locked_again(
    nats_server: NatsServer, bucket: str, open_url: Open, name: str
) -> None:
    """``nats kv del`` leaves a marker, and a new key must name its revision."""
    provider = open_url(nats_server.url(bucket))
    first = acquired(provider, name)
    nats_server.delete(bucket, name)
    assert provider.record(name) is None
    assert name not in [record.name for record in provider.records()]
    second = acquired(provider, name)
    assert (second.fencing_token or 0) > (first.fencing_token or 0) > 0
    assert provider.release(first) is False


def test_prune_leaves_nothing(nats_server: NatsServer, open_url: Open, name: str) -> None:
    bucket = f"pruned-{uuid4().hex[:8]}"
    provider = open_url(nats_server.url(bucket), clock_error="0s")
    provider.create_schema()
    for number in range(3):
        provider.release(acquired(provider, f"{name}-{number}"))
    held = acquired(provider, f"{name}-held")

    async def messages(jetstream: JetStreamContext) -> int:
        return (await jetstream.stream_info(f"KV_{bucket}")).state.messages

    assert provider.prune(0) == 3
    assert nats_server.run(messages) == 1
    assert provider.release(held)


def test_a_bucket_that_is_made_again_does_not_bring_versions_back(
    nats_server: NatsServer, open_url: Open, name: str
) -> None:
    """The holder of a lost record must not overwrite the record of its successor."""
    bucket = f"again-{uuid4().hex[:8]}"
    provider = open_url(nats_server.url(bucket))
    provider.create_schema()
    lost = acquired(provider, name)

    async def delete(jetstream: JetStreamContext) -> None:
        await jetstream.delete_key_value(bucket)

    nats_server.run(delete)
    provider.create_schema()
    successor = acquired(provider, name)
    assert provider.extend(lost, "5m") is None
    assert record_of(provider, name).locked_by == successor.locked_by


def test_a_key_that_is_no_lock_record(
    nats_server: NatsServer, bucket: str, open_url: Open, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider = open_url(nats_server.url(bucket))
    put(nats_server, bucket, name, b"12")
    with pytest.raises(ProviderError, match="not a lock record"):
        provider.acquire(LockRequest(name, "1m"))
    assert name not in [record.name for record in provider.records()]
    assert any(name in warning for warning in warnings_of(caplog))


@pytest.mark.slow("rewrites a reply: no server is known to fail so")
def test_i12_a_grant_without_a_reply_to_the_request_for_the_time_is_undone(
    nats_server: NatsServer, bucket: str, open_url: Open, name: str
) -> None:
    direct = open_url(nats_server.url(bucket))
    direct.release(acquired(direct, name))
    error = b'{"error":{"code":404,"err_code":10059,"description":"stream not found"}}'
    times = 0

    def second_is_an_error(chunk: bytes) -> bytes:
        """The first request for the time goes with the read, the second with the write."""
        nonlocal times
        found = re.search(rb'\{"type":"io.nats.jetstream.api.v1.stream_info_response".*?\}(?=\r\n)', chunk, re.DOTALL)
        times += found is not None
        if found is None or times != 2:
            return chunk
        return chunk[: found.start()] + error.ljust(len(found[0])) + chunk[found.end() :]

    with TcpProxy(nats_server.address, rewrite=second_is_an_error) as proxy:
        provider = open_url(nats_server.url(bucket, via=proxy.address))
        with pytest.raises(ProviderUnreachable, match="stream not found"):
            provider.acquire(LockRequest(name, "5m"))
    record = direct.record(name)
    assert record is not None
    assert not record.is_held


def test_a_missing_bucket_names_its_cure(nats_server: NatsServer, open_url: Open) -> None:
    provider = open_url(nats_server.url("no-such-bucket"))
    with pytest.raises(ProviderError, match="stream not found") as caught:
        provider.acquire(LockRequest("job", "1m"))
    assert "create_schema()" in str(caught.value.hint)


def test_doctor_reads_the_settings_of_the_bucket(nats_server: NatsServer, open_url: Open) -> None:
    def check(status: str, what: str, **settings: Any) -> None:
        bucket = f"checked-{uuid4().hex[:8]}"

        async def make(jetstream: JetStreamContext) -> None:
            await jetstream.create_key_value(bucket=bucket, **settings)

        nats_server.run(make)
        provider: Any = open_url(nats_server.url(bucket))
        (found,) = provider.checks()
        assert (found.check, found.status, found.message) == ("bucket", status, what)

    check("ok", "replicas: 1")
    check("failed", "its TTL deletes held locks", ttl=3600)
    check("warning", "in memory: a restart of its servers frees all locks", storage="memory")
