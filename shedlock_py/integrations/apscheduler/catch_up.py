"""Catch up: submit, once and late, runs that were missed because no replica was up at their fire time.

This happens when a scheduler starts, and when it is resumed. The worker reads the lock record and decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from shedlock_py.errors import ConfigurationError
from shedlock_py.events import logger
from shedlock_py.integrations.apscheduler.fire_times import fire_time_of, is_on_schedule, is_predictable
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.record import LockRecord
from shedlock_py.settings.off_switch import is_active

_RESOLUTION = timedelta(milliseconds=1)


def parse_catch_up(given: Duration | None, *, once_per_fire_time: bool | None, has_elector: bool) -> timedelta | None:
    """Parse the option ``catch_up``.

    :raises ConfigurationError: the duration is not valid, or conflicts with the executor's other options.
    """
    if given is None:
        return None
    if once_per_fire_time is False:
        raise ConfigurationError(
            "catch_up cannot work with once_per_fire_time=False: the store must know which fire times were run"
        )
    if has_elector:
        raise ConfigurationError("catch_up cannot work with elector=: no node leads yet when its scheduler starts")
    return parse_duration(given, "catch_up")


def refuse_leader_only(scheduler: Any) -> None:
    """:raises ConfigurationError: the scheduler works only on the leader, so nothing is left to catch up."""
    if getattr(scheduler, "runs_on_leader_only", False):
        raise ConfigurationError(
            "catch_up cannot work with lead(scheduler, elector): give the jobs a misfire_grace_time, within which the"
            " next leader runs what was due"
        )


def submit_missed(jobs: Iterable[Any], within: timedelta, submit: Callable[[Any, list[datetime]], None]) -> None:
    """Submit each job that was due. The worker reads from the store whether the run was missed."""
    now = datetime.now(UTC)
    for job in jobs:
        try:
            run_time = last_run_time(job.trigger, now, within)
            if run_time is not None:
                submit(job, [run_time])
        except Exception:  # a run time beyond the calendar, or an executor that refuses the job
            logger.exception('the last run of job "%s" cannot be caught up', job)


def jobs_of(scheduler: Any, alias: str) -> list[Any]:
    """Return the jobs of the executor ``alias`` that are not paused. Return no jobs while locking is switched off."""
    if not is_active():
        return []
    return [job for job in scheduler.get_jobs() if job.executor == alias and job.next_run_time is not None]


def last_run_time(trigger: Any, now: datetime, within: timedelta) -> datetime | None:
    """Return when ``trigger`` was due last, if that was at most ``within`` before ``now``.

    This works for an interval trigger, a cron trigger without jitter, and an ``OrTrigger`` of such cron triggers. Other
    triggers cannot compute the past, or the replicas do not share their fire times.
    """
    if type(trigger) is IntervalTrigger:
        return _last_of_interval(trigger, now, within)
    parts = trigger.triggers if type(trigger) is OrTrigger else [trigger]
    if not is_predictable(trigger) or any(type(part) is not CronTrigger for part in parts):
        return None
    earliest, latest = _next(trigger, now - within), now
    if earliest is None or earliest > now:
        return None
    while latest - earliest > _RESOLUTION:  # earliest is a run time; from latest to now there is none
        middle = earliest + (latest - earliest) / 2
        run_time = _next(trigger, middle)
        if run_time is not None and run_time <= now:
            earliest = run_time
        else:
            latest = middle
    return earliest


def _last_of_interval(trigger: Any, now: datetime, within: timedelta) -> datetime | None:
    """Return the last run time. In the current slot it is never too old: a job in short-lived processes must run."""
    interval, start = trigger.interval, trigger.start_date.astimezone(UTC)
    if start > now:
        # By default the trigger counts from the start of this process. The replicas share only the slot.
        return fire_time_of(trigger, now) if start - now <= interval else None
    end = now if trigger.end_date is None else min(now, trigger.end_date.astimezone(UTC))
    if end < start:
        return None
    last: datetime = start + (end - start) // interval * interval
    is_current = fire_time_of(trigger, last) == fire_time_of(trigger, now)
    return last if is_current or now - last <= within else None


def _next(trigger: Any, moment: datetime) -> datetime | None:
    """Return the first run time at or after ``moment``."""
    run_time: datetime | None = trigger.get_next_fire_time(None, moment)
    return None if run_time is None else run_time.astimezone(UTC)  # in UTC a difference is the real distance


def is_missed(record: LockRecord | None, trigger: Any, fire_time: datetime, *, is_of_trigger: bool) -> bool | None:
    """Return whether ``fire_time`` was due, but no run used it; or None if the schedule has changed, so nobody knows.

    :param is_of_trigger: the trigger gave the fire time. False if the decorator gave it.
    """
    is_interval = isinstance(trigger, IntervalTrigger)
    if record is None:
        return is_interval  # a new cron job has missed nothing
    last = record.last_fire_time
    if (last is None and not is_interval) or (last is not None and last >= fire_time):
        return False
    if record.pause is not None:
        if record.locked_at <= fire_time <= record.lock_until:
            return False
    elif record.locked_at > fire_time:
        return False  # the job was run by hand since then
    if last is None or not is_of_trigger or is_on_schedule(trigger, last):
        return True
    return True if is_interval and fire_time - last >= trigger.interval else None
