"""How the cost of an acquire grows with the names that a client uses, and with the records in the store."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from statistics import median
from time import perf_counter_ns
from typing import Any

from benchmarks.contenders.base import LEASE, load
from benchmarks.plan import Plan
from benchmarks.servers import RunningStore, Site
from benchmarks.statistics import ratio
from shedlock_py import LockProvider, LockRequest

_US = 1000
FEW = 10
"""Names that are used, spread over all records."""
MOST_IN_MONGODB = 1_000  # SecantusDB looks at each of them, every time


def name(number: int) -> str:
    return f"name-{number}"


def by_names(store: RunningStore, plan: Plan, rng: random.Random) -> dict[str, Any]:
    """One client uses 1, 100, 10,000 names in turn."""
    sizes = [size for size in plan.names if size <= _most(store)]
    return _grow(store, "names", sizes, lambda size: list(range(size)), plan, rng)


def by_records(store: RunningStore, plan: Plan, rng: random.Random) -> dict[str, Any]:
    """One client uses ten names, in a store with more and more others."""
    sizes = [size for size in plan.records if size <= _most(store)]
    return _grow(store, "records", sizes, lambda size: [size * n // FEW for n in range(FEW)], plan, rng)


def _most(store: RunningStore) -> int:
    return MOST_IN_MONGODB if store.site.store == "mongodb" else 10**9


def _grow(
    store: RunningStore,
    what: str,
    sizes: Sequence[int],
    used: Callable[[int], list[int]],
    plan: Plan,
    rng: random.Random,
) -> dict[str, Any]:
    providers: dict[int, Any] = {}
    names: dict[int, Iterator[str]] = {}
    for place, size in enumerate(sizes):
        providers[size] = filled(store.site, f"{what}_{size}", size, place + (1 if what == "names" else 8))
        names[size] = _endless([name(number) for number in used(size)])
        _acquires(providers[size], names[size], 2 * FEW)
    took = median(_acquires(providers[sizes[0]], names[sizes[0]], 2 * FEW))
    times = max(FEW, min(200, int(plan.block_seconds * 1e9 / took)))
    rounds: dict[int, list[float | None]] = {size: [] for size in sizes}
    for _ in range(plan.rounds):
        for size in rng.sample(list(sizes), len(sizes)):
            rounds[size].append(median(_acquires(providers[size], names[size], times)) / _US)
    for provider in providers.values():
        provider.close()
    return {str(size): _figures(rounds[size], rounds[sizes[0]]) for size in sizes}


def _figures(ours: list[float | None], least: list[float | None]) -> dict[str, Any]:
    compared = ratio(ours, least)
    assert compared is not None
    return {
        "acquire_us": median(value for value in ours if value is not None),
        "ratio": {"middle": compared.middle, "low": compared.low, "high": compared.high},
    }


def _endless(names: Sequence[str]) -> Iterator[str]:
    while True:
        yield from names


def _acquires(provider: LockProvider, names: Iterator[str], times: int) -> list[int]:
    took = []
    for _ in range(times):
        request = LockRequest(next(names), LEASE)
        begin = perf_counter_ns()
        lease = provider.acquire(request)
        took.append(perf_counter_ns() - begin)
        if lease is None or not provider.release(lease):
            raise RuntimeError(f"{request.name} was not free")
    return took


def filled(site: Site, table: str, size: int, number: int) -> Any:
    """A provider of a store of its own, in which are so many records of locks that were released long ago."""
    match site.store:
        case "redis":
            return _redis(site, number, size)
        case "mongodb":
            return _mongodb(site, table, size)
    provider = load("shedlock_py.providers.sqlalchemy").SqlAlchemyLockProvider(site.url(), table_name=table)
    provider.create_schema()
    {"postgres": _postgres, "mariadb": _mariadb, "sqlite": _sqlite}[site.store](site, table, size)
    return provider


_COLUMNS = "name, lock_until, locked_at, locked_by, fencing_token"


def _postgres(site: Site, table: str, size: int) -> None:
    with load("psycopg").connect(site.url("postgresql"), autocommit=True) as connection:
        old = "(now() AT TIME ZONE 'utc') - interval '1 day'"
        connection.execute(
            f"INSERT INTO {table} ({_COLUMNS}) SELECT 'name-' || n, {old}, {old}, 'bench#' || n, n"
            f" FROM generate_series(0, {size - 1}) n"
        )
        connection.execute(f"VACUUM ANALYZE {table}")


def _mariadb(site: Site, table: str, size: int) -> None:
    old = "UTC_TIMESTAMP(6) - INTERVAL 1 DAY"
    with closing(load("pymysql").connect(autocommit=True, **site.arguments)) as connection:
        connection.cursor().execute(
            f"INSERT INTO {table} ({_COLUMNS}) SELECT CONCAT('name-', seq), {old}, {old}, CONCAT('bench#', seq), seq"
            f" FROM seq_0_to_{size - 1}"
        )
        connection.cursor().execute(f"ANALYZE TABLE {table}")


def _sqlite(site: Site, table: str, size: int) -> None:
    old = "'2020-01-01 00:00:00.000000'"
    with closing(sqlite3.connect(site.path)) as connection, connection:
        connection.execute(
            f"WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {size - 1})"
            f" INSERT INTO {table} ({_COLUMNS}) SELECT 'name-' || n, {old}, {old}, 'bench#' || n, n FROM numbers"
        )


_FILL = """
for n = ARGV[1], ARGV[2] - 1 do
    local key = 'shedlock:{name-' .. string.format('%.0f', n) .. '}'
    redis.call('HSET', key, 'lock_until', '1', 'locked_at', '1', 'locked_by', 'bench#1', 'fencing_token', '1',
        'released_token', '1')
    redis.call('PEXPIRE', key, 2592000000)
end
"""
_CHUNK = 20_000


def _redis(site: Site, number: int, size: int) -> Any:
    """In a database of its own: all keys of one database are in one table."""
    url = f"{site.url().rpartition('/')[0]}/{number}"
    with load("redis").Redis.from_url(url) as client:
        for start in range(0, size, _CHUNK):
            client.eval(_FILL, 0, start, min(start + _CHUNK, size))
    return load("shedlock_py.providers.redis").RedisLockProvider(url)


def _mongodb(site: Site, table: str, size: int) -> Any:
    client = load("pymongo").MongoClient(site.url())
    old = datetime(2020, 1, 1, tzinfo=UTC)
    for start in range(0, size, _CHUNK):
        client["shedlock"][table].insert_many(
            {"_id": name(n), "lockUntil": old, "lockedAt": old, "lockedBy": f"bench#{n}", "fencingToken": 1}
            for n in range(start, min(start + _CHUNK, size))
        )
    client.close()
    return _MongoProvider(site, table)


class _MongoProvider:
    """One with a client of its own to close."""

    def __init__(self, site: Site, table: str) -> None:
        self._client = load("pymongo").MongoClient(site.url())
        provider = load("shedlock_py.providers.mongodb").MongoLockProvider(self._client["shedlock"], collection=table)
        self.acquire, self.release = provider.acquire, provider.release

    def close(self) -> None:
        self._client.close()
