"""The growth of an acquire's cost with a client's names, and with the records in the store.

The same rounds measure the floor, ours, and the best peer, with equally many records in their tables. Redis has one
key space for all, and peers delete their released keys, so all records there are ours.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from statistics import median
from time import perf_counter_ns
from typing import Any

from benchmarks.contenders import US, Contender, RefusedError, Session, find
from benchmarks.contenders.base import load
from benchmarks.contenders.floors import TABLE
from benchmarks.plan import Plan
from benchmarks.servers import RunningStore, Site
from benchmarks.statistics import ratio

_US = 1000
FEW = 10
"""Number of used names, spread over all records."""
TURNS = 4
"""Number of turns in each round."""
MOST_IN_MONGODB = 1_000  # SecantusDB reads every record each time
RIVALS = {
    "redis": "fencekit",
    "postgres": "stormlock",
    "mariadb": "stormlock",
    "mysql": "stormlock",
    "sqlite": "mithril-locks",
}
"""The best peer with leases on records."""


def name(number: int) -> str:
    return f"name-{number}"


def by_names(store: RunningStore, plan: Plan, rng: random.Random) -> dict[str, Any]:
    """Let one client use 1, 100 and 10,000 names in turn."""
    return _grow(store, "names", plan.names, lambda size: list(range(size)), plan, (plan.rounds + 1) // 2, rng)


def by_records(store: RunningStore, plan: Plan, rng: random.Random) -> dict[str, Any]:
    """Let one client use ten names, in a store with a growing number of other records."""
    return _grow(
        store, "records", plan.records, lambda size: [size * n // FEW for n in range(FEW)], plan, plan.rounds, rng
    )


@dataclass(eq=False)
class _Entry:
    """A contender in a store with ``size`` records."""

    contender: Contender
    size: int
    session: Session
    names: Iterator[str]
    times: int = 1
    """Acquires in each turn."""
    rounds: list[float | None] = field(default_factory=list)
    """Medians, in microseconds."""


def _grow(
    store: RunningStore,
    what: str,
    wanted: Sequence[int],
    used: Callable[[int], list[int]],
    plan: Plan,
    rounds: int,
    rng: random.Random,
) -> dict[str, Any]:
    name_of_store = store.site.store
    sizes = [size for size in wanted if name_of_store != "mongodb" or size <= MOST_IN_MONGODB]
    compared = [find(name_of_store, one) for one in ("floor", US, RIVALS.get(name_of_store)) if one]
    with ExitStack() as stack:
        entries: list[_Entry] = []
        for place, size in enumerate(sizes):
            # Redis has sixteen numbered databases.
            number = place + (1 if what == "names" else 8)
            site = store.site.within(str(number) if name_of_store == "redis" else f"{what}_{size}")
            _create(store.site, site.database)
            names = [name(number) for number in used(size)]
            for contender in compared:
                try:
                    entries.append(_open(contender, site, size, names, plan, stack))
                except Exception as error:
                    plan.drop(contender, f"growth with {what}", error)
        for _ in range(rounds):
            _round(entries, what, plan, rng)
    return {str(size): _figures(entries, size, sizes[0]) for size in sizes}


def _round(entries: list[_Entry], what: str, plan: Plan, rng: random.Random) -> None:
    """Measure in several turns, so that a slow disk slows all contenders. Drop a contender that fails."""
    took: dict[int, list[int]] = {id(entry): [] for entry in entries}
    for _ in range(TURNS):
        for entry in rng.sample(entries, len(entries)):
            if entry not in entries:
                continue
            try:
                took[id(entry)] += _acquires(entry, entry.times)
            except Exception as error:
                plan.drop(entry.contender, f"growth with {what}", error)
                entries[:] = [other for other in entries if other.contender is not entry.contender]
    for entry in entries:
        entry.rounds.append(median(took[id(entry)]) / _US)


def _open(contender: Contender, site: Site, size: int, names: Sequence[str], plan: Plan, stack: ExitStack) -> _Entry:
    session = contender.open(site)
    stack.callback(session.close)
    assert isinstance(session, Session)
    _fill(site, contender.name, size)
    session.expect(names)
    entry = _Entry(contender, size, session, _endless(names))
    took = median(_acquires(entry, 2 * FEW))
    entry.times = max(3, min(25, int(plan.block_seconds / 2 / TURNS * 1e9 / took)))
    return entry


def _endless(names: Sequence[str]) -> Iterator[str]:
    while True:
        yield from names


def _acquires(entry: _Entry, times: int) -> list[int]:
    """Return the nanoseconds of each acquire. Release after each acquire, outside the measurement."""
    session, took = entry.session, []
    for _ in range(times):
        wanted = next(entry.names)
        begin = perf_counter_ns()
        is_ours = session.take(wanted)
        took.append(perf_counter_ns() - begin)
        if not is_ours:
            raise RefusedError(f"{wanted} was not free for {entry.contender.name}")
        session.give(wanted)
    return took


def _figures(entries: Sequence[_Entry], size: int, fewest: int) -> dict[str, Any]:
    """Compare each contender with itself at the fewest, and with the floor at the same size, round by round."""
    rounds = {(entry.contender.name, entry.size): entry.rounds for entry in entries}
    found: dict[str, Any] = {}
    for entry in entries:
        if entry.size != size:
            continue
        one = entry.contender
        seen = [value for value in entry.rounds if value is not None]
        found[one.name] = {"kind": one.kind, "acquire_us": median(seen)}
        for key, base in (("ratio", (one.name, fewest)), ("floor_ratio", ("floor", size))):
            if (compared := ratio(entry.rounds, rounds.get(base, [None] * len(entry.rounds)))) is not None:
                found[one.name][key] = asdict(compared)
    return found


# Records of locks that were released long ago


def _create(site: Site, database: str) -> None:
    """Make the database. Other stores make it at its first use."""
    statement = f"CREATE DATABASE {database}"
    if site.store == "postgres":
        with load("psycopg").connect(site.url("postgresql"), autocommit=True) as connection:
            connection.execute(statement)
    elif site.store in ("mariadb", "mysql"):
        with closing(load("pymysql").connect(autocommit=True, **site.arguments)) as connection:
            connection.cursor().execute(statement)


def _fill(site: Site, whose: str, size: int) -> None:
    match site.store:
        case "redis":
            if whose == US:
                _redis(site, size)
        case "mongodb":
            _mongodb(site, _DOCUMENTS[whose], size)
        case "postgres":
            _postgres(site, *_TABLES[whose], size)
        case "mariadb" | "mysql":
            _mysql(site, *_TABLES[whose], size)
        case "sqlite":
            _sqlite(site, *_TABLES[whose], size)


_TABLES = {
    US: (
        "shedlock",
        "name, lock_until, locked_at, locked_by, fencing_token",
        "'name-' || n, {old}, {old}, 'bench#' || n, n",
    ),
    "floor": (TABLE, "name, ends, owner", "'name-' || n, {ended}, 'bench'"),
    "stormlock": ("stormlock", "resource, principal, created, expires", "'name-' || n, 'bench', {old}, {old}"),
    "mithril-locks": ("mithril_fencing", "name, token", "'name-' || n, n"),  # the lock itself leaves nothing
}
"""Table, columns and values. ``{old}`` is yesterday, ``{ended}`` is yesterday in the floor's format."""


def _postgres(site: Site, table: str, columns: str, values: str, size: int) -> None:
    old = "(now() AT TIME ZONE 'utc') - interval '1 day'"
    with load("psycopg").connect(site.url("postgresql"), autocommit=True) as connection:
        connection.execute(
            f"INSERT INTO {table} ({columns}) SELECT {values.format(old=old, ended=old)}"
            f" FROM generate_series(0, {size - 1}) n"
        )
        connection.execute(f"VACUUM ANALYZE {table}")


def _mysql(site: Site, table: str, columns: str, values: str, size: int) -> None:
    old = "UTC_TIMESTAMP(6) - INTERVAL 1 DAY"
    with closing(load("pymysql").connect(autocommit=True, **site.arguments)) as connection:
        connection.cursor().execute("SET sql_mode = 'PIPES_AS_CONCAT'")
        if site.store == "mysql":
            connection.cursor().execute(f"SET cte_max_recursion_depth = {size}")
        connection.cursor().execute(
            f"INSERT INTO {table} ({columns}) WITH RECURSIVE numbers (n) AS"
            f" (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {size - 1})"
            f" SELECT {values.format(old=old, ended=old)} FROM numbers"
        )
        connection.cursor().execute(f"ANALYZE TABLE {table}")


def _sqlite(site: Site, table: str, columns: str, values: str, size: int) -> None:
    old = "'2020-01-01 00:00:00.000000'"
    with closing(sqlite3.connect(site.path)) as connection, connection:
        connection.execute(
            f"WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {size - 1})"
            f" INSERT INTO {table} ({columns}) SELECT {values.format(old=old, ended='0')} FROM numbers"
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


def _redis(site: Site, size: int) -> None:
    with load("redis").Redis.from_url(site.url()) as client:
        for start in range(0, size, _CHUNK):
            client.eval(_FILL, 0, start, min(start + _CHUNK, size))


_OLD = datetime(2020, 1, 1, tzinfo=UTC)
_DOCUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    US: ("shedlock", {"lockUntil": _OLD, "lockedAt": _OLD, "lockedBy": "bench#1", "fencingToken": 1}),
    "floor": (TABLE, {"ends": _OLD, "owner": "bench"}),
}


def _mongodb(site: Site, what: tuple[str, dict[str, Any]], size: int) -> None:
    collection, fields = what
    with load("pymongo").MongoClient(site.url()) as client:
        for start in range(0, size, _CHUNK):
            documents = [{"_id": name(n), **fields} for n in range(start, min(start + _CHUNK, size))]
            client[site.database][collection].insert_many(documents)
