"""How each database tells its own time inside a statement, and how its times come back.

Every expression is evaluated by the database. Times are UTC without a zone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True)
class SqlClock:
    """SQL expressions of one database. ``until`` is ``:hold_ms`` milliseconds from now (before now, if negative)."""

    now: str
    until: str
    microseconds: str
    """Since 1970, as a whole number."""
    greatest: str
    """The function that picks the greatest of its arguments."""
    fire_time: str
    """The parameter ``:fire_time``, with its type where the database must be told."""
    times_as_text: bool = False

    def to_store(self, moment: datetime) -> datetime | str:
        """``moment`` as the database compares it."""
        naive = moment.astimezone(UTC).replace(tzinfo=None)
        return naive.isoformat(sep=" ", timespec="microseconds") if self.times_as_text else naive

    def from_store(self, value: datetime | str) -> datetime:
        """What the database returned, as aware UTC."""
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


_POSTGRESQL = SqlClock(
    # Never now(), which stands still from the start of the transaction; this one is read after waiting for row locks.
    now="timezone('utc', clock_timestamp())",
    until="timezone('utc', clock_timestamp()) + CAST(:hold_ms AS bigint) * interval '1 millisecond'",
    microseconds="CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    greatest="GREATEST",
    fire_time="CAST(:fire_time AS timestamp)",
)

_MYSQL = SqlClock(
    # The start of the statement, which is on the safe side. Never NOW(), which follows the session's time zone.
    now="UTC_TIMESTAMP(6)",
    until="UTC_TIMESTAMP(6) + INTERVAL :hold_ms * 1000 MICROSECOND",
    microseconds="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    greatest="GREATEST",
    fire_time=":fire_time",
)

_SQLITE = SqlClock(
    # 'now' is read once per statement, after it has got the write lock. Always 26 characters, so that text compares
    # as time does, in the format of SQLAlchemy's DateTime.
    now="(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')",
    until="(strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.3f seconds', :hold_ms / 1000.0)) || '000')",
    # SQLite has no finer clock than a millisecond, and two acquisitions with a deletion between them can fall into one.
    # It has no server either: ``:now_us``, the machine's clock just before the statement, is the store's own. If the
    # statement then waited for the write lock, its own milliseconds are later.
    microseconds=(
        "max(:now_us, CAST(strftime('%s', 'now') AS INTEGER) * 1000000"
        " + CAST(substr(strftime('%f', 'now'), 4, 3) AS INTEGER) * 1000)"
    ),
    greatest="max",
    fire_time=":fire_time",
    times_as_text=True,
)

CLOCKS = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL, "mysql": _MYSQL, "mariadb": _MYSQL}
