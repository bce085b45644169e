"""The clock of each database as SQL expressions, and the conversion of its times and records.

The database evaluates every expression: only SQLite's ``:now_us`` is a time of this machine. Times are UTC without a
zone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from reprlib import repr as short_repr
from typing import Any

from shedlock_py.errors import ProviderError
from shedlock_py.model.record import LockRecord, holder_of
from shedlock_py.providers.kit import refused

EARLIEST = datetime.min.replace(tzinfo=UTC)
BEFORE_EARLIEST = EARLIEST + timedelta(days=1)
"""Shown for times before the year 1. It is a day later than EARLIEST, so Python can show it in every zone."""
LATEST = datetime.max.replace(tzinfo=UTC, hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
"""Shown for later times."""

_AS_TEXT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?")


@dataclass(frozen=True)
class SqlClock:
    """SQL expressions of one database. ``until`` is ``:hold_ms`` milliseconds from now, or before now if negative."""

    now: str
    until: str
    latest_fire_time: str
    """``:tolerance_ms`` milliseconds from now: the same moment everywhere in a statement."""
    microseconds: str
    """Microseconds since 1970, an integer."""
    greatest: str
    """The function that returns the greatest of its arguments."""
    least: str
    even: str = "(({0} + 1) & -2)"
    """An integer, rounded up to an even integer."""
    is_same: str = "="
    """The operator that compares two values and treats NULL as equal to NULL."""
    moment: str = ":{0}"
    """A time parameter, with its type if the database needs it. ``number`` and ``text``: for other types."""
    number: str = ":{0}"
    text: str = ":{0}"
    shown: str = "{0}"
    """A time column as it is read: within the range of Python's datetime."""
    same_time: str = "{0} = {1}"
    """Whether a time column, {0}, is equal to the time that was read, {1}. All later times were read as LATEST."""
    times_as_text: bool = False

    @property
    def fire_time(self) -> str:
        """The parameter ``:fire_time``."""
        return self.moment.format("fire_time")

    @property
    def is_late(self) -> str:
        """SQL that is true if ``:fire_time`` is further in the future than the tolerance."""
        return f"({self.fire_time} > {self.latest_fire_time})"

    def to_store(self, moment: datetime) -> datetime | str:
        """Return ``moment`` as the database compares it."""
        naive = moment.astimezone(UTC).replace(tzinfo=None)
        return naive.isoformat(sep=" ", timespec="microseconds") if self.times_as_text else naive

    def from_store(self, value: object) -> datetime | None:
        """Return a database value as aware UTC, or None if it is not a time.

        SQLite stores any value in any column. MySQL's drivers return ``'0000-00-00 00:00:00'`` as text.
        """
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value) if _AS_TEXT.fullmatch(value) else None
            except ValueError:
                return None
        if not isinstance(value, datetime):
            return None
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return min(moment, LATEST)


def _literal(moment: datetime) -> str:
    return f"timestamp '{moment:%Y-%m-%d}'".replace("'1-", "'0001-")  # strftime pads the year 1 only on some systems


_POSTGRESQL_SHOWN = (
    f"CASE WHEN {{0}} < {_literal(EARLIEST)} THEN {_literal(BEFORE_EARLIEST)} "
    f"WHEN {{0}} > {_literal(LATEST)} THEN {_literal(LATEST)} ELSE {{0}} END"
)

_POSTGRESQL = SqlClock(
    # now() would be the start of the transaction. This time is read after waiting for row locks.
    now="timezone('utc', clock_timestamp())",
    until="timezone('utc', clock_timestamp()) + CAST(:hold_ms AS bigint) * interval '1 ms'",
    latest_fire_time="timezone('utc', statement_timestamp()) + CAST(:tolerance_ms AS bigint) * interval '1 ms'",
    microseconds="CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    greatest="GREATEST",
    least="LEAST",
    is_same="IS NOT DISTINCT FROM",
    # All drivers send text: asyncpg would send the first moment of the year 1 as '-infinity', another moment.
    moment="CAST(CAST(:{0} AS text) AS timestamp)",
    number="CAST(:{0} AS bigint)",
    text="CAST(:{0} AS varchar)",
    # Drivers raise for 'infinity' and for times before the year 1 or after 9999.
    shown=_POSTGRESQL_SHOWN,
    same_time=f"{_POSTGRESQL_SHOWN} = {{1}}",
    times_as_text=True,
)

_MYSQL = SqlClock(
    # The start of the statement: if it waits for a row, the lease is shorter by that wait. NOW() would follow the
    # session's time zone.
    now="UTC_TIMESTAMP(6)",
    until="UTC_TIMESTAMP(6) + INTERVAL :hold_ms * 1000 MICROSECOND",
    latest_fire_time="UTC_TIMESTAMP(6) + INTERVAL :tolerance_ms * 1000 MICROSECOND",
    microseconds="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    greatest="GREATEST",
    least="LEAST",
    even="(({0} + 1) DIV 2 * 2)",  # MySQL's & is unsigned
    is_same="<=>",
    same_time=f"LEAST({{0}}, TIMESTAMP'{LATEST:%Y-%m-%d %H:%M:%S}') = {{1}}",
)

_SQLITE_TIME = "(strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%+.3f seconds', {} / 1000.0)) || '000')"

_SQLITE = SqlClock(
    # SQLite reads 'now' once per statement, after it has the write lock. The text always has 26 characters, so it sorts
    # like the times. It is the format of SQLAlchemy's DateTime.
    now="(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')",
    until=_SQLITE_TIME.format(":hold_ms"),
    latest_fire_time=_SQLITE_TIME.format(":tolerance_ms"),
    # SQLite's clock has milliseconds, and two acquisitions with a deletion between them can fall into the same one.
    # ``:now_us`` is this machine's clock just before the statement. It is SQLite's clock, too, because SQLite has no
    # server. If the statement then waits for the write lock, SQLite's milliseconds are later and count.
    microseconds=(
        "max(:now_us, CAST(strftime('%s', 'now') AS INTEGER) * 1000000"
        " + CAST(substr(strftime('%f', 'now'), 4, 3) AS INTEGER) * 1000)"
    ),
    greatest="max",
    least="min",
    is_same="IS",
    # Another program may have written the time with fewer digits.
    same_time=(
        f"min(strftime('%Y-%m-%d %H:%M:%f', {{0}}), '{LATEST:%Y-%m-%d %H:%M:%S}.000') "
        f"IS strftime('%Y-%m-%d %H:%M:%f', {{1}})"
    ),
    times_as_text=True,
)

CLOCKS = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL, "mysql": _MYSQL, "mariadb": _MYSQL}

_TOKENS = range(-(2**63), 2**63 - 2)  # a larger even and a larger odd BIGINT must exist


def to_record(row: Sequence[Any], clock: SqlClock, operation: str) -> LockRecord:
    """Return the record in ``row``.

    :raises ProviderError: a column has an impossible value. The error names the lock and the column.
    """
    name, locked_by, locked_at, lock_until, fencing_token, last_fire_time, read_at = row
    name = str(name)
    if not isinstance(locked_by, str):
        raise _odd_value(operation, name, "locked_by", locked_by, "no text")

    def time(column: str, value: object) -> datetime:
        return to_time(value, clock, operation, name, column)

    token = check_token(fencing_token, operation, name)
    # ShedLock for Java does not change the token. Its holders lack claim ids.
    has_claim_id = holder_of(locked_by) != locked_by
    return LockRecord(
        name=name,
        locked_by=locked_by,
        locked_at=time("locked_at", locked_at),
        lock_until=time("lock_until", lock_until),
        fencing_token=token,
        last_fire_time=None if last_fire_time is None else time("last_fire_time", last_fire_time),
        read_at=time("now", read_at),
        is_released=token % 2 == 1 if token is not None and has_claim_id else None,
    )


def to_time(value: object, clock: SqlClock, operation: str, name: str, column: str) -> datetime:
    """Return the time in ``column`` of the record of ``name``.

    :raises ProviderError: the value is not a time.
    """
    moment = clock.from_store(value)
    if moment is None:
        raise _odd_value(operation, name, column, value, "no time")
    return moment


def check_token(token: object, operation: str, name: str) -> int | None:
    """Return ``token``.

    :raises ProviderError: it is not a 64-bit fencing token.
    """
    if token is None or (isinstance(token, int) and token in _TOKENS):
        return token
    raise _odd_value(operation, name, "fencing_token", token, "no whole number of 64 bits that can grow")


def _odd_value(operation: str, name: str, column: str, value: object, problem: str) -> ProviderError:
    return refused(
        operation,
        name,
        f"{column} in its record is {short_repr(value)}, {problem}",
        hint="correct the record, or delete it while nobody runs the job",
    )
