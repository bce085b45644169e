"""Run history on Redis: its content and its age, and locks that work without it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, cast

import pytest
import redis

from shedlock_py import Lease, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.kit import locking
from shedlock_py.providers.redis import commands
from shedlock_py.providers.redis import redis_programs as programs
from shedlock_py.providers.redis.commands import Call, Script, script
from tests.stores.redis.stores import URL_KINDS, Store, send, through
from tests.support.locks import acquired, outcomes, record_of
from tests.support.logs import warnings_of

DAY_MS = 86_400_000
FIRE_TIME = datetime(2026, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)
NOT_WRITTEN = "the run history is not written, locks are not affected"
JOBS = "resetchannels -@all ~shedlock:* +evalsha +eval +time +hmget +hset +pexpire"
TOOLS = f"{JOBS} +hget +hdel +scan +del +hgetall"
"""The permissions from the user's page."""

pytestmark = through(*URL_KINDS, programs=True)


@pytest.fixture
def keeper(store: Store) -> Any:
    return store.provider(history=3)


def key_of(name: str) -> str:
    return f"shedlock:{{{name}}}"


def lost(provider: Any, name: str) -> Lease:
    """Return a lease that the record no longer has."""
    lease = acquired(provider, name)
    provider.take_over(LockRequest(name, "1m"))
    return lease


def test_the_fields_of_a_run_are_as_documented(keeper: Any, client: redis.Redis, name: str) -> None:
    lease = acquired(keeper, name, fire_time=FIRE_TIME, next_fire_time=FIRE_TIME + timedelta(days=1))
    fields: Any = client.hgetall(key_of(name))
    assert fields[b"run_slot"] == b"0"
    fire_time = int(FIRE_TIME.timestamp()) * 1_000_000 + 123456
    start = [lease.fencing_token, int(fields[b"locked_at"]), fire_time, fire_time + 86_400_000_000, lease.locked_by]
    assert fields[b"run:0"].decode().split("\n") == [str(part) for part in start]
    lease.outcome, lease.error = "failed", "ValueError: two\nlines"
    assert keeper.release(lease)
    ended = client.hget(key_of(name), "lock_until").decode()  # type: ignore[union-attr]  # this client is not async
    end = [ended, "failed", "ValueError: two"]
    assert client.hget(key_of(name), "run:0").decode().split("\n")[5:] == end  # type: ignore[union-attr]
    assert keeper.runs(name)[0].error == "ValueError: two"
    assert keeper.undo(acquired(keeper, name))
    assert client.keys(f"*{name}*") == [key_of(name).encode()], "one key"
    assert [record.name for record in keeper.records(name)] == [name]


def test_runs_are_kept_for_ten_years(store: Store, keeper: Any, client: redis.Redis, name: str) -> None:
    def days() -> float:
        left = client.pttl(key_of(name))
        client.pexpire(key_of(name), DAY_MS)
        return round(left / DAY_MS, 1)

    lease = acquired(keeper, name)
    assert days() == 3652
    assert keeper.extend(lease, "1d")
    assert days() == 3653
    assert keeper.release(lease)
    assert days() == 3652
    keeper.take_over(LockRequest(name, "1m"))
    assert days() == 3652
    assert keeper.force_release(name)
    assert days() == 1, "as if the lease had expired"
    assert store.provider().release(acquired(store.provider(), name))
    assert days() == 30, "as without history"


def test_prune_deletes_the_runs(keeper: Any, client: redis.Redis, store: Store, name: str) -> None:
    keeper = store.provider(key_prefix=name, history=3)
    assert keeper.release(acquired(keeper, name))
    assert outcomes(keeper, name) == ["ok"]
    assert keeper.prune(0) == 1
    assert keeper.runs(name) == []
    assert client.keys(f"*{name}*") == []


def test_a_ring_that_changes_its_size_keeps_the_newest(store: Store, name: str) -> None:
    """During a deploy, or after a changed setting, replicas keep different numbers of runs."""
    sizes = random.Random(17).choices(range(1, 8), k=12)
    reader: Any = store.provider(history=1000)
    tokens: list[int | None] = []
    sure = 0
    for size in sizes:
        provider = store.provider(history=size)
        for number in range(1, random.Random(size).randint(1, 12)):
            lease = acquired(provider, name)
            tokens.append(lease.fencing_token)
            assert provider.release(lease)
            sure = max(min(sure, size), min(number, size))
            found = [run.fencing_token for run in reader.runs(name, 1000)]
            assert found[:sure] == tokens[: -sure - 1 : -1]


def test_an_acquisition_that_is_given_back_leaves_its_place(keeper: Any, name: str) -> None:
    for _ in range(3):
        assert keeper.release(acquired(keeper, name))
    for _ in range(3):
        assert keeper.undo(acquired(keeper, name))
        assert outcomes(keeper, name) == ["ok", "ok"], "it had overwritten the oldest"
    assert keeper.release(acquired(keeper, name))
    assert outcomes(keeper, name) == ["ok"] * 3


@pytest.mark.parametrize("limit", ["maxmemory", "min-replicas-to-write"])
def test_i8_a_lost_run_that_cannot_be_written(
    private: Store, limit: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A release that does not match the record writes only history, and the server rejects this write."""
    keeper: Any = private.provider(history=3)
    leases = [lost(keeper, f"{name}-{number}") for number in range(3)]
    held = acquired(keeper, f"{name}-held")
    with private.server.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set(limit, 1)
        assert keeper.release(leases[0]) is False
        assert keeper.release(leases[1]) is False
        assert len(warnings_of(caplog, NOT_WRITTEN)) == 1
        assert ("OOM" if limit == "maxmemory" else "NOREPLICAS") in warnings_of(caplog, NOT_WRITTEN)[0]
        client.config_set(limit, 0)
    assert keeper.release(held), "the lease counts"
    assert outcomes(keeper, held.name) == [None], "history rests"
    inner = getattr(keeper, "async_provider", keeper)
    inner.programs.clock = lambda: monotonic() + 61
    assert keeper.release(leases[2]) is False
    assert outcomes(keeper, leases[2].name) == [None, "lost"]


def test_a_full_server_takes_the_end_of_a_run(private: Store, name: str) -> None:
    keeper: Any = private.provider(history=3)
    lease = acquired(keeper, name)
    with private.server.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        with pytest.raises(ProviderUnreachable, match="maxmemory"):
            keeper.acquire(LockRequest(f"{name}-2", "1m"))
        assert keeper.release(lease)
        assert outcomes(keeper, name) == ["ok"]


@pytest.mark.parametrize("operation", ["acquire", "take_over", "release", "undo"])
def test_i8_what_the_server_refuses_is_history_only(
    store: Store,
    operation: str,
    name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis does not reject a history command that it has just allowed: put a command into the scripts that it
    rejects."""

    def changed(name: str) -> Script:
        found = script(name)
        return replace(found, text=found.text.replace(b"redis.pcall('HSET'", b"redis.pcall('NONE'"), sha="0" * 40)

    provider: Any = store.provider()
    keeper: Any = store.provider(history=3)
    lease = acquired(keeper, f"{name}-2")
    for module in (commands, programs):
        monkeypatch.setattr(module, "script", changed)
    if operation in ("acquire", "take_over"):
        lease = getattr(keeper, operation)(LockRequest(name, "1m"))
        assert record_of(provider, name).fencing_token == lease.fencing_token
    elif operation == "release":
        assert keeper.release(lease)
    else:
        assert keeper.undo(lease)
    assert len(warnings_of(caplog, NOT_WRITTEN)) == 1
    assert "Unknown" in warnings_of(caplog, NOT_WRITTEN)[0]
    assert name in warnings_of(caplog, NOT_WRITTEN)[0]
    assert keeper.release(acquired(keeper, f"{name}-3"))
    assert len(warnings_of(caplog, NOT_WRITTEN)) == 1


@pytest.mark.parametrize("odd", ["", "-1", "nan", "1e3", "0x1", "5000", "x\ny", b"\xff"], ids=repr)
def test_an_odd_slot_begins_a_new_ring(keeper: Any, client: redis.Redis, name: str, odd: Any) -> None:
    assert keeper.release(acquired(keeper, name))
    client.hset(key_of(name), "run_slot", odd)
    assert keeper.release(acquired(keeper, name))
    assert outcomes(keeper, name) == ["ok"]


def test_replicas_that_keep_different_numbers_of_runs_keep_the_larger(store: Store, name: str) -> None:
    """During a deploy that changes ``history=``."""
    few, many = store.provider(history=2), store.provider(history=5)
    for keeper in (few, many, few, many, few, few, few):
        assert keeper.release(acquired(keeper, name))
    assert outcomes(many, name) == ["ok"] * 5
    assert outcomes(few, name) == ["ok"] * 2


NOW = b"1795269529244626"
ODD = [
    b"x",
    b"\n\n\n\n",
    b"1\n2\n3\n4",
    b"1\nsoon\n\n\nme#1",
    b"1\n%s\n\n\nme#1\n%s" % (NOW, NOW),
    b"1\n%s\n\n\nme#1\n\nok\n" % NOW,
    b"1\n999999999999999999\n\n\nme#1",
    b"1.5\n%s\n\n\nme#1" % NOW,
    b"\xff\n%s\n\n\nme#1" % NOW,
    b"1\n%s\n\n\nme#1\n%s\n\x1b[31mok\n" % (NOW, NOW),
]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_an_odd_run_is_an_error_that_says_how_to_delete_it(
    keeper: Any, client: redis.Redis, name: str, odd: bytes
) -> None:
    other = f"{name}-other"
    for lock in (name, other):
        assert keeper.release(acquired(keeper, lock))
    client.hset(key_of(name), "run:1", odd)
    with pytest.raises(ProviderError, match="not what history wrote") as raised:
        keeper.runs(name)
    assert not isinstance(raised.value, ProviderUnreachable)
    assert (raised.value.operation, raised.value.lock_name) == ("runs", name)
    cure = f"HDEL {key_of(name)} run:1"
    assert cure in str(raised.value)
    assert outcomes(keeper, other) == ["ok"]
    assert record_of(keeper, name).fencing_token
    send(client, *cure.split())
    assert outcomes(keeper, name) == ["ok"]
    client.hset(key_of(name), "run:1", odd)
    assert keeper.release(acquired(keeper, name))
    assert outcomes(keeper, name) == ["ok", "ok"], "the next run takes the place"


def test_history_needs_no_more_permissions_than_the_locks(store: Store, name: str) -> None:
    """Only reading history needs another permission: HGETALL."""
    host, port = store.server.address
    with store.server.client() as client:
        for user, rules in (("jobs", JOBS), ("tools", TOOLS)):
            send(client, "ACL", "SETUSER", f"{user}-{name}", "on", ">hunter2", *rules.split())
        jobs, tools = (
            cast("Any", store.provider(url=f"redis://{user}-{name}:hunter2@{host}:{port}", history=3))
            for user in ("jobs", "tools")
        )
        gone = lost(jobs, name)
        assert jobs.release(gone) is False
        assert jobs.undo(acquired(jobs, f"{name}-2"))
        assert outcomes(tools, name) == [None, "lost"]
        assert outcomes(tools, f"{name}-2") == []
        with pytest.raises(ProviderError, match=r"hgetall|can't run this command"):  # the message of Redis 7.0
            outcomes(jobs, name)
        for user in ("jobs", "tools"):
            send(client, "ACL", "DELUSER", f"{user}-{name}")


def test_without_history_the_same_is_sent(store: Store, name: str) -> None:
    """Programs without history yield the same arguments as before."""
    provider: Any = store.provider()
    inner = getattr(provider, "async_provider", provider)
    request = LockRequest(name, "1m", next_fire_time=FIRE_TIME)
    lease = acquired(provider, name)
    lease.error = "x"
    extended = locking.extend(inner.programs, lease, "1m")
    sent: list[Callable[[], Any]] = [
        lambda: locking.acquire(inner.programs, request),
        lambda: extended,
        lambda: inner.programs.undo_claim(name, lease.locked_by, None),
        lambda: locking.release(inner.programs, lease),
    ]
    calls: list[Call] = [next(program()) for program in sent]
    assert [(call.script.name, len(call.args)) for call in calls] == [
        ("acquire", 5),
        ("extend", 5),
        ("undo", 3),
        ("release", 3),
    ]
    assert all(commands.KEPT_MS in call.args for call in calls)
