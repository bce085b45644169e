"""``--once-per``: the period that a moment belongs to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST_LEAD = timedelta(seconds=30)


def lead(period: timedelta) -> timedelta:
    """How long before a full multiple of ``period`` each period begins: half a minute, or half of a short period.

    Schedulers start jobs at full minutes, some a moment early by their clock and some late. Clocks that differ by less
    than the lead then agree on the period.
    """
    return min(LONGEST_LEAD, period / 2)


def period_of(now: datetime, period: timedelta) -> datetime:
    """The multiple of ``period`` since 1970-01-01 00:00 UTC that names the period which ``now`` (aware) is in.

    It is the fire time of all runs in that period: the same on each host, and later than that of the period before.
    """
    return EPOCH + (now + lead(period) - EPOCH) // period * period
