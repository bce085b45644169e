"""Hostile input injects nothing, hangs nothing and reveals no secret. It is kept exactly, or refused clearly.

See also tests/stores: sql/test_refusals.py, mongodb/test_inputs.py, redis/test_keys.py; and the contract's names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    LockProvider,
    LockRequest,
    ShedLockError,
)
from shedlock_py.model.durations import parse_duration
from shedlock_py.providers.cas import CasPrograms
from shedlock_py.providers.dynamodb.dynamodb_programs import DynamoDBPrograms
from shedlock_py.providers.redis import AsyncRedisLockProvider, RedisLockProvider
from tests.support import tiers
from tests.support.locks import record_of
from tests.support.stores import ALL, Store
from tests.support.stores import STORES as REGISTERED

SETTINGS = settings(
    deadline=None,
    database=None,
    derandomize=not tiers.runs("all"),
    max_examples=500 if tiers.runs("all") else 40 if tiers.runs("full") else 15,
    suppress_health_check=list(HealthCheck),
)
HUGE = 1_000_000

IN_MAKE_TEST = ("postgres sync", "redis sync")
ANOTHER_STORE = pytest.mark.slow("`make test` tries two stores, and the contract awkward names on each")
LIKE_ETCD = pytest.mark.matrix("its names are those of etcd's programs, encoded")
OTHER_SQL = [
    f"{name} {kind}"
    for name in ALL
    for kind in ("sync", "async")
    if REGISTERED[name].facts.is_sql and f"{name} {kind}" not in IN_MAKE_TEST
]
# Not S3: it reads each record for a list, and prunes no young record. See tests/stores/s3/test_records.py.
OTHERS = [f"{name} sync" for name in ALL if not REGISTERED[name].facts.is_sql and name not in ("redis", "quorum", "s3")]
STORES = [
    *IN_MAKE_TEST,
    *(
        pytest.param(store, marks=LIKE_ETCD if store == "kubernetes sync" else ANOTHER_STORE)
        for store in ("memory", "redis async", "mongodb async", *OTHER_SQL, *OTHERS)
    ),
]
MakeStore = Callable[..., Store]


@contextmanager
def quick(seconds: float = 10.0) -> Iterator[None]:
    """Assert that the block takes less time than this. The time limit of the test ends a store that hangs."""
    began = time.thread_time()
    yield
    assert time.thread_time() - began < seconds


def refusal(call: Callable[[], object], kind: type[ShedLockError] = ConfigurationError) -> str:
    """Return the message of a refusal, which must be short, or "" if the call is not refused."""
    try:
        call()
    except kind as refused:
        message = str(refused)
    else:
        return ""
    assert 0 < len(message) < 2000, f"{len(message)} characters: {message[:200]}"
    return message


def store_of(make_store: MakeStore, case: str) -> Store:
    name, kind = case.split()
    return make_store(name).asynchronous() if kind == "async" else make_store(name)


@pytest.fixture(scope="module", params=STORES)
def provider(request: pytest.FixtureRequest, make_store: MakeStore) -> Iterator[LockProvider]:
    if request.param == "memory":
        yield InMemoryLockProvider()
        return
    # The time limit is not under test, and an object store reads each record for a list.
    with store_of(make_store, request.param).provider(timeout="60s") as provider:
        yield provider


def use(provider: LockProvider, name: str, holder: str) -> None:
    """Run a lock through its whole life. Whatever its name contains, the operations reach this lock only."""
    before = {record.name for record in provider.records()}
    lease = provider.acquire(LockRequest(name, "10m", holder=holder))
    assert lease is not None
    assert provider.acquire(LockRequest(name, "10m")) is None
    record = provider.record(name)
    assert record is not None
    assert (record.name, record.holder, record.is_held) == (name, holder, True)
    assert {found.name for found in provider.records()} == before | {name}
    assert name in {found.name for found in provider.records(name)}
    assert provider.extend(lease, "20m") is lease
    assert provider.release(lease) is True
    taken = provider.take_over(LockRequest(name, "10m", holder=holder))
    assert provider.force_release(name) is True
    assert provider.release(taken) is False
    if isinstance(getattr(provider, "programs", None), CasPrograms | DynamoDBPrograms):
        return  # its coarse clock: it prunes no young record
    assert provider.prune(0) == len(before) + 1 or not before
    assert provider.records() == []


FRAGMENTS = [
    "'; DROP TABLE shedlock; --", "x'); DELETE FROM shedlock; SELECT ('", '" OR "1"="1',
    "\\'; DROP TABLE shedlock; --", "/* */ UNION SELECT NULL --", ":name :locked_by %(name)s %s ? $1",
    "$$; DROP TABLE shedlock; $$", "E'\\x00'::bytea", "]]; redis.call('FLUSHALL'); --[[",
    "') redis.call('FLUSHALL') return ('", "'..redis.call('FLUSHALL')..'", "KEYS[1] ARGV[1] %.0f %s",
    "{a}{b} }{ {} {{name}}", "*?[a-z]^\\", '{"$where": "while(1);"}', "$$ROOT.$lockUntil", "__proto__.constructor",
    "\u202eesrever\u202c", "\u2066isolate\u2069", "\u200b\u200d\ufeffzero width", "e\u0301\u0327\u0323 combining",
    "\u1e9e\u0130\u0131\ufb01\uff21", "a" + "\u0301" * 63, "line\u2028separator\u2029", "\U0010ffff\ufffe\uffff",
    "../../etc/passwd", "${jndi:ldap:/h/x}", "<script>alert(1)</script>", "\xa0no-break\xa0",
]  # fmt: skip


def test_fragments_of_statements_are_names_like_others(provider: LockProvider) -> None:
    for fragment in FRAGMENTS:
        with quick(30):
            use(provider, fragment, holder=fragment)


@SETTINGS
@given(name=st.text(max_size=70), holder=st.text(max_size=210))
def test_any_text_is_carried_exactly_or_refused(provider: LockProvider, name: str, holder: str) -> None:
    with quick(30):
        if refusal(lambda: LockRequest(name, "1m", holder=holder)):
            refusal(lambda: provider.record(name))  # or None: perhaps the holder was wrong, not the name
            refusal(lambda: provider.force_release(name))
        else:
            use(provider, name, holder)


UNNAMEABLE: list[Any] = [
    "", " ", "\t", "\n", "a\nb", "a\x00b", "\x00", "\x7f", "\x85", "\ud800", "a\udfffb", "x" * 65, "\u0301" * 65,
    "\u2003", "x" * HUGE, "\x00" * HUGE, " " * HUGE, "\ud800" * HUGE, b"bytes", None, 7, ["job"], {"$ne": 1},
]  # fmt: skip
HOLDERS = (None, "x" * 65, "\u0301" * 65)
"""Holders may have 200 characters; None is this host."""


def test_what_cannot_be_a_name_is_refused_in_few_words(provider: LockProvider) -> None:
    """Before any request."""
    not_refused = []
    for name in UNNAMEABLE:
        calls: list[Callable[[], object]] = [
            partial(LockRequest, name, "1m"),
            partial(provider.record, name),
            partial(provider.force_release, name),
        ]
        if name not in HOLDERS:
            calls.append(partial(LockRequest, "job", "1m", holder=name))
        for call in calls:
            with quick(5):
                message = refusal(call)
            if not 0 < len(message) < 1000:
                not_refused.append((ascii(name)[:20], message[:100]))
    assert not_refused == []


# Moments and durations

EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
FIRE_TIMES = [
    datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, 0, 0, 0, 1, WEST), datetime(999, 12, 31, 23, 59, 59, 999999, UTC),
    datetime(1582, 10, 10, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    datetime(1970, 1, 1, tzinfo=UTC), datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC),
    datetime(2106, 2, 7, 6, 28, 16, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, EAST),
]  # fmt: skip


def test_i11_fire_times_at_the_ends_of_time_are_kept_or_refused(provider: LockProvider) -> None:
    kept = [fire_time for fire_time in FIRE_TIMES if is_kept(provider, fire_time)]
    provider.prune(0)
    assert FIRE_TIMES[5] in kept, "some are"


def is_kept(provider: LockProvider, fire_time: datetime) -> bool:
    name, leases = f"fire-{uuid4().hex[:8]}", []
    request = LockRequest(name, "1m", fire_time=fire_time)
    with quick():
        if refusal(lambda: leases.append(provider.acquire(request)), ShedLockError):
            assert provider.record(name) is None
            return False
    [lease] = leases
    assert lease
    assert record_of(provider, name).last_fire_time == fire_time
    assert provider.release(lease)
    assert provider.acquire(request) is None, "I11"
    return True


@pytest.mark.parametrize(
    "fire_time", [datetime(1, 1, 1, tzinfo=EAST), datetime(9999, 12, 31, 23, 59, 59, tzinfo=WEST), datetime(2030, 1, 1)]
)
def test_a_fire_time_that_is_no_moment_in_utc_is_refused(fire_time: datetime) -> None:
    with pytest.raises(ConfigurationError, match="fire_time"):
        LockRequest("job", "1m", fire_time=fire_time)


DURATIONS: list[Any] = [
    "9" * HUGE + "s", "1." + "0" * HUGE + "1s", "1" + " " * HUGE + "s", "P" * HUGE, " " * HUGE, "1s" * 1_000_000,
    10**5000, -(10**5000), 1e308, float("inf"), "١٢s", "1e9s", "0x10s", "1_000s", "\x00", "\ud800", timedelta.max,
    timedelta.min,
]  # fmt: skip


def test_what_is_no_duration_is_refused_in_few_words() -> None:
    not_refused = []
    for number, duration in enumerate(DURATIONS):
        with quick(5):
            message = refusal(partial(parse_duration, duration))
        if not 0 < len(message) < 1000:
            not_refused.append((number, message[:100]))
    assert not_refused == []


# Tables, collections, keys

TABLES = [
    'quo"te', "back`tick", "it's", "a;b", "x--y", "größe", "🐑", "{t}", "$1", "?", "back\\slash", "x" * 300, "", "a\nb",
    "a\x00b", "\ud800", "%s", ":name", "x%%y", 't" (x int); DROP TABLE victim; --', "x`; DROP TABLE victim; -- ",
]  # fmt: skip


@pytest.mark.parametrize("case", ["postgres sync", *(pytest.param(each, marks=ANOTHER_STORE) for each in OTHER_SQL)])
def test_any_table_name_is_used_or_refused(case: str, make_store: MakeStore) -> None:
    """The name is used or refused, and nothing else happens. See also tests/stores/sql/test_create_schema.py."""
    store = store_of(make_store, case)

    def use_table(table: str) -> None:
        with store.provider(table_name=table) as provider:
            provider.create_schema()
            lease = provider.take_over(LockRequest("job", "1h"))
            assert [record.locked_by for record in provider.records()] == [lease.locked_by], table
            assert provider.release(lease)

    with store.provider(table_name="victim") as victim:
        victim.create_schema()
        held = victim.take_over(LockRequest("job", "1h"))
        with quick(60):
            accepted = {table for table in TABLES if not refusal(partial(use_table, table), ShedLockError)}
        assert {"größe", "it's"} <= accepted
        assert victim.release(held) is True, "the other table is as it was"


@pytest.mark.slow("`make test` tries names on two other stores")
@pytest.mark.parametrize("case", ["mongodb sync", "mongodb async"])
def test_any_collection_is_used_or_refused(case: str, make_store: MakeStore) -> None:
    store = store_of(make_store, case)

    def use_collection(collection: str) -> None:
        with store.provider(collection=collection) as provider:
            lease = provider.take_over(LockRequest("job", "1m"))
            assert [record.locked_by for record in provider.records()] == [lease.locked_by]
            assert provider.release(lease)

    used = []
    for collection in ("x" * 300, "a b", "größe", "🐑", "system.x", "a.b", "{}", "\ud800", "x" * 60_000):
        with quick(30):
            if not refusal(partial(use_collection, collection), ShedLockError):
                used.append(collection)
    assert {"a b", "größe"} <= set(used)


@pytest.mark.parametrize("key_prefix", ["\x00", "a\nb", "\ud800", b"x", None, 7])
def test_a_key_prefix_that_cannot_be_is_refused(key_prefix: Any) -> None:
    for make in (RedisLockProvider, AsyncRedisLockProvider):
        with pytest.raises(ConfigurationError, match="key_prefix"):
            make("redis://h", key_prefix=key_prefix)
