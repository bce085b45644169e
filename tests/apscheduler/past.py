"""Lock records of the past, for tests of late runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from shedlock_py import InMemoryLockProvider, LockProvider, LockRequest
from shedlock_py.runtime.process import monotonic


class PastStore(InMemoryLockProvider):
    """A store in memory whose clock can go back for a while."""

    def __init__(self) -> None:
        self._behind = 0.0
        super().__init__(clock=lambda: monotonic() - self._behind)

    @contextmanager
    def at(self, moment: datetime) -> Iterator[None]:
        """Start the store's clock at ``moment`` inside the block."""
        self._behind = (datetime.now(UTC) - moment).total_seconds()
        try:
            yield
        finally:
            self._behind = 0.0


def ran_at(provider: LockProvider, lock: str, fire_time: datetime | None, url: str | None = None) -> None:
    """Record a run at its ``fire_time``. If that is None, record a run now, of a lock without fire times.

    :param url: URL of the store, if it is in a SQLite file.
    """
    if isinstance(provider, PastStore) and fire_time is not None:
        with provider.at(fire_time):
            _run(provider, lock, fire_time)
        return
    _run(provider, lock, fire_time)
    if url is not None and fire_time is not None:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///").partition("?")[0], timeout=60)) as connection:
            update = "UPDATE shedlock SET locked_at = ?, lock_until = ? WHERE name = ?"
            begin, end = fire_time + timedelta(seconds=0.1), fire_time + timedelta(seconds=0.2)
            texts = [moment.strftime("%Y-%m-%d %H:%M:%S.%f") for moment in (begin, end)]
            connection.execute(update, (*texts, lock))
            connection.commit()


def _run(provider: LockProvider, lock: str, fire_time: datetime | None) -> None:
    lease = provider.acquire(LockRequest(lock, "1m", fire_time=fire_time))
    assert lease is not None
    provider.release(lease)


def daily(run_time: datetime) -> Any:
    """Return a trigger that fires at this time of each day, and so once in the past day."""
    from apscheduler.triggers.cron import CronTrigger

    return CronTrigger(hour=run_time.hour, minute=run_time.minute, second=run_time.second, timezone="UTC")
