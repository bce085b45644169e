"""The fire time of a run, which all replicas share, and the next fire time."""

from __future__ import annotations

from copy import copy
from datetime import UTC, date, datetime, timedelta
from typing import Any

from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from shedlock_py.settings.lookup import configured_providers

try:
    from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
except ImportError:  # APScheduler 3.10
    CalendarIntervalTrigger = None

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = _EPOCH.toordinal()
_COMPUTABLE = (CronTrigger, DateTrigger, IntervalTrigger, CalendarIntervalTrigger)
"""Triggers that compute the next fire time from the last fire time, and keep no state."""


def fire_time_of(trigger: Any, run_time: datetime) -> datetime:
    """Return the fire time, which is the same on every replica. For an interval it is the start of the slot."""
    if isinstance(trigger, IntervalTrigger):
        interval: timedelta = trigger.interval
        return _EPOCH + (run_time - _EPOCH) // interval * interval
    if is_calendar_interval(trigger):
        return _start_of_calendar_slot(trigger, run_time)
    return run_time


def is_calendar_interval(trigger: Any) -> bool:
    return CalendarIntervalTrigger is not None and isinstance(trigger, CalendarIntervalTrigger)


def _start_of_calendar_slot(trigger: Any, run_time: datetime) -> datetime:
    """Return midnight of the slot's first day, in the time zone of the trigger, so that it is never after the run.

    Without a start date such a trigger counts from the day of its process's start. Slots count from 1970.
    """
    local = run_time.astimezone(trigger.timezone)
    days, months = trigger.days + 7 * trigger.weeks, trigger.months + 12 * trigger.years
    if days and months:
        return run_time  # such a trigger has no slots; a warning was logged
    if days:
        day = date.fromordinal(_FIRST_DAY + (local.toordinal() - _FIRST_DAY) // days * days)
    else:
        month = ((local.year - _EPOCH.year) * 12 + local.month - 1) // months * months
        day = date(_EPOCH.year + month // 12, month % 12 + 1, 1)
    return datetime(day.year, day.month, day.day, tzinfo=trigger.timezone).astimezone(UTC)


def is_predictable(trigger: Any) -> bool:
    """Return whether replicas agree on the fire times. False for a trigger of another package: it may do anything."""
    if isinstance(trigger, IntervalTrigger):
        return True  # on the slots
    if is_calendar_interval(trigger):
        return not ((trigger.days or trigger.weeks) and (trigger.months or trigger.years))  # on the slots
    if getattr(trigger, "jitter", None):
        return False
    if isinstance(trigger, AndTrigger | OrTrigger):
        return all(_is_scheduled_time(part) for part in trigger.triggers)
    return isinstance(trigger, CronTrigger | DateTrigger)


def _is_scheduled_time(trigger: Any) -> bool:
    """Return whether the fire time of a run is its scheduled time, and not a slot."""
    return is_predictable(trigger) and not isinstance(trigger, IntervalTrigger) and not is_calendar_interval(trigger)


def is_on_schedule(trigger: Any, moment: datetime) -> bool:
    """Return whether the present ``trigger`` can fire at ``moment``."""
    if isinstance(trigger, IntervalTrigger) or is_calendar_interval(trigger):
        return fire_time_of(trigger, moment) == moment
    try:
        return bool(trigger.get_next_fire_time(None, moment) == moment)
    except Exception:  # beyond the calendar, for example
        return False


def is_last_fire_time(trigger: Any, moment: datetime, now: datetime) -> bool:
    """Return whether ``moment`` is a fire time of ``trigger``, and the next fire time is still to come."""
    if isinstance(trigger, IntervalTrigger) or is_calendar_interval(trigger):
        return fire_time_of(trigger, now) == moment
    following = next_fire_time_of(trigger, moment)
    return is_on_schedule(trigger, moment) and (following is None or following > now)


def why_plain(trigger: Any, provider: object) -> str | None:
    """Return why a job cannot run once per fire time, or None if no reason is known.

    :param provider: the store of the job's lock. None means the configured store, which may not be known yet.
    """
    if not is_predictable(trigger):
        parts = [trigger, *getattr(trigger, "triggers", ())]
        jitter = " with jitter" if any(getattr(part, "jitter", None) for part in parts) else ""
        return f"each replica has fire times of its own for the trigger {trigger}{jitter}"
    provider = next(iter(configured_providers(provider)), None)
    if not getattr(getattr(provider, "sync_provider", provider), "has_fire_times", True):
        return "its lock table has no column last_fire_time (extra_columns=False)"
    return None


def next_fire_time_of(trigger: Any, run_time: datetime) -> datetime | None:
    """Return the latest moment, in UTC, of the next fire time after ``run_time``: with all of its jitter.

    It is for run history. Return None if the trigger never fires again, or if nobody can compute the moment. Triggers
    of other classes and of subclasses are not called, because they may count their calls. An AndTrigger is not called,
    because its search may never end.
    """
    try:
        moment = _next_of(trigger, run_time)
        return None if moment is None else moment.astimezone(UTC)
    except Exception:  # beyond the calendar, for example
        return None


def _next_of(trigger: Any, run_time: datetime) -> datetime | None:
    """:raises TypeError: the trigger, or a part of it, is of a class that is not called."""
    jitter = getattr(trigger, "jitter", None)
    if type(trigger) is OrTrigger:
        moments = [moment for part in trigger.triggers if (moment := _next_of(part, run_time)) is not None]
        moment = min(moments, default=None)
    elif type(trigger) in _COMPUTABLE:
        if jitter:
            trigger = copy(trigger)
            trigger.jitter = None
        moment = trigger.get_next_fire_time(run_time, run_time)
    else:
        raise TypeError(f"the fire times of {type(trigger)} cannot be computed")
    return moment + timedelta(seconds=jitter) if moment is not None and jitter else moment
