"""Slots: ``once_per="1h"`` makes the current hour the fire time of a run, so that one replica runs in that hour."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST_LEAD = timedelta(seconds=30)
"""A slot begins at most this long before the moment that names it."""


def slot_of(moment: datetime, length: timedelta) -> datetime:
    """Return the multiple of ``length`` since 1970-01-01 00:00 UTC at or before ``moment``, which is aware."""
    return EPOCH + (moment - EPOCH) // length * length


def current_slot(now: datetime, length: timedelta) -> datetime:
    """Return the slot of ``now``, by a clock that may be wrong.

    The slot is the fire time of all runs in it: the same on each host, and later than the fire time of the slot before.
    A slot begins half a minute before the multiple that names it, or half of a short slot. Schedulers start jobs at
    full minutes, some a moment early by their clock and some late: clocks that differ by less than that agree on the
    slot.
    """
    return slot_of(now + min(LONGEST_LEAD, length / 2), length)
