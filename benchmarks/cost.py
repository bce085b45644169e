"""The server's cost of an operation, counted by the server: log, row locks, commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.contenders.base import load
from benchmarks.plan import Plan
from benchmarks.servers import RunningStore, Site
from benchmarks.subject import Subject

WARM_UP = 8
TIMES = 50

Counters = dict[str, float]


def measure(store: RunningStore, contenders: Sequence[Contender], plan: Plan) -> dict[str, Counters]:
    """Return the cost per operation, by contender. Empty for stores without such counters."""
    found: dict[str, Counters] = {}
    if store.site.store not in READERS:
        return found
    with READERS[store.site.store](store.site) as read:
        for contender in contenders:
            try:
                found[contender.name] = count(store, contender, read)
            except Exception as error:
                plan.drop(contender, "server cost", error)
    return found


def count(store: RunningStore, contender: Contender, read: Callable[[], Counters]) -> Counters:
    """Count a contender's operations. ``read`` returns the counts since its last call."""
    with asyncio.Runner() as runner:
        holder = Subject(contender, store.site, runner)
        subject = Subject(contender, store.site, runner)
        try:
            name, held = f"cost-{contender.slug}", f"paid-{contender.slug}"
            found = _count("cycle", lambda times: subject.cycles([name] * times), read)
            if contender.skips:
                holder.keep(held)
                found |= _count("skip", lambda times: subject.refusals(held, times), read)
        finally:
            subject.close()
            holder.close()
    return found


def _count(what: str, do: Callable[[int], Any], read: Callable[[], Counters]) -> Counters:
    do(WARM_UP)
    read()
    do(TIMES)
    return {f"{what}_{name}": value / TIMES for name, value in read().items()}


@contextmanager
def redis_commands(site: Site) -> Iterator[Callable[[], Counters]]:
    with load("redis").Redis.from_url(site.url()) as client:

        def read() -> Counters:
            stats = client.info("commandstats")
            client.config_resetstat()
            # Commands in a script count as well: the server carries them out.
            own = ("cmdstat_info", "cmdstat_config|resetstat")
            return {"commands": float(sum(entry["calls"] for name, entry in stats.items() if name not in own))}

        yield read


@contextmanager
def postgres_log(site: Site) -> Iterator[Callable[[], Counters]]:
    """Count PostgreSQL's write-ahead log records, which include row locks."""
    with load("psycopg").connect(site.url("postgresql"), autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
        place = ["0/0"]

        def read() -> Counters:
            end = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
            connection.execute("SELECT pg_logical_emit_message(true, 'bench', '')")  # flushes the log for reading
            begin, place[0] = place[0], connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone()[0]
            if begin == "0/0" or begin == end:
                return {"row_locks": 0.0, "wal_bytes": 0.0}
            # Leave out full pages after a checkpoint, and the server's own records.
            row = connection.execute(
                "SELECT count(*) FILTER (WHERE record_type LIKE '%%LOCK%%' AND resource_manager LIKE 'Heap%%'),"
                " coalesce(sum(record_length - fpi_length), 0) FROM pg_get_wal_records_info(%s, %s)"
                " WHERE resource_manager IN ('Heap', 'Btree', 'Transaction', 'MultiXact')",
                (begin, end),
            ).fetchone()
            return {"row_locks": float(row[0]), "wal_bytes": float(row[1])}

        yield read


@contextmanager
def mysql_status(site: Site) -> Iterator[Callable[[], Counters]]:
    names = {"Innodb_os_log_written": "log_bytes", "Handler_update": "row_updates", "Questions": "statements"}
    shown = ", ".join(repr(name) for name in names)
    with closing(load("pymysql").connect(autocommit=True, **site.arguments)) as connection:
        last: Counters = dict.fromkeys(names.values(), 0.0)

        def read() -> Counters:
            with connection.cursor() as cursor:
                cursor.execute(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({shown})")
                now = {names[name]: float(value) for name, value in cursor.fetchall()}
            since = {name: now[name] - last[name] for name in now}
            since["statements"] -= 1  # this query
            last.update(now)
            return since

        yield read


READERS = {"redis": redis_commands, "postgres": postgres_log, "mariadb": mysql_status, "mysql": mysql_status}
