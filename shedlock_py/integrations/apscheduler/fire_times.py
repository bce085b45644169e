"""The fire time of a run, by which all replicas name it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from apscheduler.triggers.interval import IntervalTrigger

try:
    from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
except ImportError:  # APScheduler 3.10
    CalendarIntervalTrigger = None

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = _EPOCH.toordinal()


def fire_time_of(trigger: Any, run_time: datetime) -> datetime:
    """The time by which every replica names this run: for an interval the start of its slot."""
    if isinstance(trigger, IntervalTrigger):
        interval: timedelta = trigger.interval
        return _EPOCH + (run_time - _EPOCH) // interval * interval
    if is_calendar_interval(trigger):
        return _start_of_calendar_slot(trigger, run_time)
    return run_time


def is_calendar_interval(trigger: Any) -> bool:
    return CalendarIntervalTrigger is not None and isinstance(trigger, CalendarIntervalTrigger)


def _start_of_calendar_slot(trigger: Any, run_time: datetime) -> datetime:
    """Midnight of the first day of the slot, in the time zone of the trigger, so that it is never later than the run.

    Without a start date such a trigger counts from the day on which its process was started; slots count from 1970.
    """
    local = run_time.astimezone(trigger.timezone)
    days, months = trigger.days + 7 * trigger.weeks, trigger.months + 12 * trigger.years
    if days and months:
        return run_time  # it has no slots; there was a warning
    if days:
        day = date.fromordinal(_FIRST_DAY + (local.toordinal() - _FIRST_DAY) // days * days)
    else:
        month = ((local.year - _EPOCH.year) * 12 + local.month - 1) // months * months
        day = date(_EPOCH.year + month // 12, month % 12 + 1, 1)
    return datetime(day.year, day.month, day.day, tzinfo=trigger.timezone).astimezone(UTC)


def is_predictable(trigger: Any) -> bool:
    """Whether replicas agree on the fire times."""
    if isinstance(trigger, IntervalTrigger):
        return True  # on the slots
    if is_calendar_interval(trigger):
        return not ((trigger.days or trigger.weeks) and (trigger.months or trigger.years))  # likewise
    if getattr(trigger, "jitter", None):
        return False
    parts = getattr(trigger, "triggers", ())  # of an AndTrigger or OrTrigger
    return all(
        is_predictable(part) and not isinstance(part, IntervalTrigger) and not is_calendar_interval(part)
        for part in parts
    )
