"""Write stores with many names and runs directly, without locking. The page reads them like any others."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import redis

HOLDERS = [f"web-{number}.eu-west-1.example.internal:{7000 + number}" for number in range(6)]
OUTCOMES = ["ok"] * 18 + ["failed", "lost"]
CLAIM_ID = "0123456789abcdef" * 2


def name_of(number: int) -> str:
    return f"tenant-{number:05}/nightly-report"


def fill_sqlite(file: Path, names: int, runs: int) -> None:
    """Fill the tables, which must exist."""
    now = datetime.now(UTC).replace(microsecond=0)
    locks, rows = [], []
    for number in range(names):
        name = name_of(number)
        for run in range(runs):
            started = now - timedelta(hours=runs - run, seconds=number)
            holder = f"{HOLDERS[(number + run) % 6]}#{CLAIM_ID}"
            outcome = OUTCOMES[(number + run) % 20]
            error = "ConnectionError: no route to host" if outcome == "failed" else None
            token = int(started.timestamp() * 1_000_000)
            rows.append((name, token, holder, _sql(started), _sql(started + timedelta(seconds=42)), outcome, error))
        until = now + timedelta(minutes=10) if number % 10 == 0 else started + timedelta(seconds=42)
        locks.append((name, _sql(until), _sql(started), holder, token))
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.executemany(
            "INSERT INTO shedlock (name, lock_until, locked_at, locked_by, fencing_token) VALUES (?, ?, ?, ?, ?)", locks
        )
        connection.executemany(
            "INSERT INTO shedlock_runs (name, fencing_token, locked_by, started, ended, outcome, error) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            rows,
        )


def _sql(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S.%f}"


def fill_redis(url: str, names: int, runs: int) -> None:
    """Write the keys as the scripts do: see ``lua/history.lua``."""
    now = int(datetime.now(UTC).timestamp()) * 1_000_000
    client = redis.Redis.from_url(url)
    pipeline = client.pipeline(transaction=False)
    for number in range(names):
        record: dict[Any, Any] = {}
        for run in range(runs):
            started = now - (3600 * (runs - run) + number) * 1_000_000
            holder = f"{HOLDERS[(number + run) % 6]}#{CLAIM_ID}"
            outcome = OUTCOMES[(number + run) % 20]
            error = "ConnectionError: no route to host" if outcome == "failed" else ""
            lines = [started, started, "", "", holder, started + 42_000_000, outcome, error]
            record[f"run:{run}"] = "\n".join(map(str, lines))
        until = now + 600_000_000 if number % 10 == 0 else started + 42_000_000
        record |= {"locked_by": holder, "locked_at": started, "lock_until": until, "fencing_token": started}
        record["run_slot"] = runs - 1
        pipeline.hset(f"shedlock:{{{name_of(number)}}}", mapping=record)
        if number % 500 == 499:
            pipeline.execute()
    pipeline.execute()
    client.close()
