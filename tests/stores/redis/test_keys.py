"""The stored records: keys, fields and expiry, as documented."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from shedlock_py import LockProvider, LockRequest
from tests.stores.redis.stores import URL_KINDS, Store, through
from tests.support.locks import acquired, record_of, token_of

DAY_MS = 86_400_000
FIELDS = {b"lock_until", b"locked_at", b"locked_by", b"fencing_token", b"extended_at"}
FIRE_TIME = datetime(2026, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)

pytestmark = through(*URL_KINDS, programs=True)


@pytest.fixture
def provider(store: Store) -> LockProvider:
    return store.provider()


def microseconds(client: redis.Redis) -> int:
    seconds, rest = client.time()
    return int(seconds) * 1_000_000 + int(rest)


def numbers(client: redis.Redis, name: str) -> dict[str, int]:
    """The numeric fields: plain digits, without a point or an exponent."""
    fields = client.hgetall(f"shedlock:{{{name}}}")
    found = {str(field, "ascii"): text for field, text in fields.items() if field != b"locked_by"}  # type: ignore[arg-type]  # bytes, as this client does not decode
    assert all(text.isdigit() for text in found.values()), fields
    return {field: int(text) for field, text in found.items()}


def test_i10_a_record_is_one_hash_with_times_of_the_server(
    provider: LockProvider, client: redis.Redis, name: str
) -> None:
    before = microseconds(client)
    lease = acquired(provider, name, "90s", holder="me")
    after = microseconds(client)
    key = f"shedlock:{{{name}}}"
    assert client.keys(f"*{name}*") == [key.encode()]
    assert client.type(key) == b"hash"
    assert set(client.hkeys(key)) == FIELDS
    assert client.hget(key, "locked_by") == f"me#{lease.claim_id}".encode()
    stored = numbers(client, name)
    assert before <= stored["locked_at"] <= after
    assert stored["lock_until"] == stored["locked_at"] + 90_000_000
    assert stored["fencing_token"] == lease.fencing_token == stored["locked_at"], "a new name: the server's clock"
    record = record_of(provider, name)
    assert record.locked_at == datetime.fromtimestamp(0, UTC) + timedelta(microseconds=stored["locked_at"])
    assert record.lock_until - record.locked_at == timedelta(seconds=90)
    assert provider.release(lease)
    assert set(client.hkeys(key)) == {*FIELDS, b"released_token"}
    assert numbers(client, name)["released_token"] == lease.fencing_token
    following = acquired(provider, name, fire_time=FIRE_TIME)
    assert set(client.hkeys(key)) == {*FIELDS, b"released_token", b"last_fire_time"}
    assert numbers(client, name)["last_fire_time"] == int(FIRE_TIME.timestamp()) * 1_000_000 + 123456
    assert record_of(provider, name).last_fire_time == FIRE_TIME
    assert provider.take_over(LockRequest(name, "1m", fire_time=FIRE_TIME - timedelta(days=1)))
    assert record_of(provider, name).last_fire_time == FIRE_TIME, "it does not go back"
    later = provider.take_over(LockRequest(name, "1m", fire_time=FIRE_TIME + timedelta(microseconds=1)))
    assert record_of(provider, name).last_fire_time == FIRE_TIME + timedelta(microseconds=1)
    assert token_of(later) > token_of(following) > token_of(lease)


@pytest.mark.parametrize("at_most", ["3ms", "1m", "7d", "520w"])
def test_i3_a_record_outlives_its_lease_by_thirty_days(
    provider: LockProvider, client: redis.Redis, name: str, at_most: str
) -> None:
    key = f"shedlock:{{{name}}}"

    def assert_kept(lease_ms: int) -> None:
        assert 29 * DAY_MS + lease_ms < client.pttl(key) <= 30 * DAY_MS + lease_ms
        assert client.pexpire(key, DAY_MS), "the next operation is to refresh it"

    request = LockRequest(name, at_most)
    lease_ms = request.lock_at_most_for // timedelta(milliseconds=1)
    lease = provider.acquire(request)
    assert lease
    assert_kept(lease_ms)
    lease = provider.take_over(LockRequest(name, at_most, at_most if at_most == "7d" else 0))
    assert_kept(lease_ms)
    if at_most != "3ms":
        assert provider.extend(lease, "8d") is lease
        assert_kept(8 * DAY_MS)
        assert provider.release(lease) is True
        assert_kept(7 * DAY_MS if at_most == "7d" else 0)


@pytest.mark.parametrize(
    "prefix", ["", "*", "a?c", "[a-z]", "h[^x]llo", "back\\slash", "{braced}", "{", "}", "größe 🐑", "a:b", "x" * 300]
)
def test_prefixes_are_taken_literally(store: Store, client: redis.Redis, prefix: str, name: str) -> None:
    key_prefix = f"{name}{prefix}"
    provider = store.provider(key_prefix=key_prefix)
    locks = ["job", "job-2", "j*b", "j[o]b", "j\\b", "größe"]
    for lock in locks:
        acquired(provider, lock)
        assert client.exists(f"{key_prefix}:{{{lock}}}")
    # A pattern that is not literal would also match these names.
    for near in ("abc", "xyz", "a", "hello", "hallo", "backslash"):
        if not near.startswith(prefix):
            client.hset(f"{name}{near}:{{other}}", "locked_by", "x")
    assert [record.name for record in provider.records()] == sorted(locks)
    assert [record.name for record in provider.records("j*")] == ["j*b"]
    assert [record.name for record in provider.records("j[o]")] == ["j[o]b"]
    assert [record.name for record in provider.records("j\\")] == ["j\\b"]
    assert [record.name for record in provider.records("job")] == ["job", "job-2"]
    assert provider.records("jo?") == []
    for lock in locks:
        assert provider.force_release(lock)
    assert provider.prune(0) == len(locks)
    client.delete(*client.keys(f"{name}*") or ["none"])


def test_many_records_are_read_without_the_command_keys(private: Store) -> None:
    provider = private.provider()
    names = sorted(f"job-{i:04}" for i in range(1203))
    with private.server.client() as client:
        pipeline = client.pipeline()
        for i, name in enumerate(names):
            values: Any = {
                "locked_by": "x#y",
                "locked_at": i,
                "lock_until": i + 1,
                "fencing_token": 1_700_000_000_000_000 + i,
            }
            pipeline.hset(f"shedlock:{{{name}}}", mapping=values)
            pipeline.set(f"cache:{i}", "v")
        # The key has the locks' prefix, but belongs to another program.
        pipeline.set("shedlock:{string}", "v")
        pipeline.rpush("shedlock:{list}", "v")
        pipeline.hset("shedlock:{hash}", "field", "v")
        pipeline.hset("shedlock:no-braces", "locked_by", "x")
        pipeline.hset("shedlock:{open", "locked_by", "x")
        pipeline.hset(b"shedlock:{\xff\xfe}", "locked_by", "x")
        pipeline.execute()
        foreign = 6
        client.config_resetstat()
        records = provider.records()
        commands = client.info("commandstats")
        assert "cmdstat_keys" not in commands
        assert commands["cmdstat_scan"]["calls"] < 20
        assert commands["cmdstat_evalsha"]["calls"] + commands.get("cmdstat_eval", {"calls": 0})["calls"] <= 5
        assert [record.name for record in records] == names
        assert [record.fencing_token for record in records] == [1_700_000_000_000_000 + i for i in range(1203)]
        assert [record.name for record in provider.records("job-120")] == ["job-1200", "job-1201", "job-1202"]
        held = acquired(provider, "held")
        assert provider.prune("1d") == len(names)
        assert client.dbsize() == len(names) + foreign + 1, "nothing else is deleted"
        assert [record.name for record in provider.records()] == ["held"]
        assert provider.prune(0) == 0
        assert provider.release(held)
        assert "cmdstat_keys" not in client.info("commandstats")


def test_i7_a_token_from_the_future_is_counted_on(provider: LockProvider, client: redis.Redis, name: str) -> None:
    """A clock that was set back leaves such a token."""
    key = f"shedlock:{{{name}}}"
    lease = acquired(provider, name)
    assert provider.release(lease)
    future = microseconds(client) + 10**15
    client.hset(key, "fencing_token", future)
    for i in range(1, 4):
        lease = acquired(provider, name)
        assert token_of(lease) == future + i
        assert numbers(client, name)["fencing_token"] == future + i
        assert record_of(provider, name).fencing_token == future + i
        assert provider.release(lease) is True
    assert token_of(provider.take_over(LockRequest(name, "1m"))) == future + 4
