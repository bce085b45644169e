"""Runs that were missed because no replica was up at their fire time: submitted once, late, when a scheduler starts."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.events import EVENT_SCHEDULER_RESUMED, EVENT_SCHEDULER_STARTED
from apscheduler.schedulers.base import STATE_RUNNING
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from shedlock_py.config import is_active
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.errors import ConfigurationError
from shedlock_py.events import logger
from shedlock_py.integrations.apscheduler.fire_times import fire_time_of, is_predictable
from shedlock_py.record import LockRecord

_RESOLUTION = timedelta(milliseconds=1)


def parse_catch_up(given: Duration | None, *, once_per_fire_time: bool | None, has_elector: bool) -> timedelta | None:
    """:raises ConfigurationError: no duration, or one that cannot work with the executor's other options."""
    if given is None:
        return None
    if once_per_fire_time is False:
        raise ConfigurationError(
            "catch_up cannot work with once_per_fire_time=False: the store must know which fire times were run"
        )
    if has_elector:
        raise ConfigurationError("catch_up cannot work with elector=: no node leads yet when its scheduler starts")
    return parse_duration(given, "catch_up")


def catch_up_at_start(
    scheduler: Any, alias: str, within: timedelta, submit: Callable[[Any, list[datetime]], None]
) -> None:
    """Submit the runs that were missed when ``scheduler`` has its jobs: now if it runs, else when it starts.

    :raises ConfigurationError: the scheduler works on the leader only.
    """
    if getattr(scheduler, "runs_on_leader_only", False):
        raise ConfigurationError(
            "catch_up cannot work with lead(scheduler, elector): give the jobs a misfire_grace_time, within which the"
            " next leader runs what was due"
        )

    def on_event(_event: object) -> None:
        if scheduler.state == STATE_RUNNING:  # it may have been started paused
            scheduler.remove_listener(on_event)
            _submit_missed(scheduler, alias, within, submit)

    if scheduler.state == STATE_RUNNING:
        _submit_missed(scheduler, alias, within, submit)
    else:
        scheduler.add_listener(on_event, EVENT_SCHEDULER_STARTED | EVENT_SCHEDULER_RESUMED)


def _submit_missed(
    scheduler: Any, alias: str, within: timedelta, submit: Callable[[Any, list[datetime]], None]
) -> None:
    """Submit each job of the executor ``alias`` that was due. The worker reads from the store whether it was missed."""
    if not is_active():
        return  # without locking nothing is known of the past
    now = datetime.now(UTC)
    for job in scheduler.get_jobs():
        if job.executor != alias or job.next_run_time is None:  # it is paused
            continue
        try:
            run_time = last_run_time(job.trigger, now, within)
            if run_time is not None:
                submit(job, [run_time])
        except Exception:  # a run time beyond the calendar, an executor that refuses the job
            logger.exception('the last run of job "%s" cannot be caught up', job)


def last_run_time(trigger: Any, now: datetime, within: timedelta) -> datetime | None:
    """When ``trigger`` was due last, if that was up to ``within`` before ``now``.

    Only for an interval trigger, a cron trigger without jitter, and several of these combined by ``OrTrigger``. Another
    trigger cannot be asked for any moment, or the replicas do not share its fire times.
    """
    if type(trigger) is IntervalTrigger:
        if trigger.start_date > now:
            # It counts from the start of this process. What the replicas share is the slot.
            start = fire_time_of(trigger, now)
            return start if now - start <= within else None
        trigger = copy(trigger)
        trigger.jitter = None
    else:
        parts = trigger.triggers if type(trigger) is OrTrigger else [trigger]
        if not is_predictable(trigger) or any(type(part) is not CronTrigger for part in parts):
            return None
    earliest, latest = _next(trigger, now - within), now
    if earliest is None or earliest > now:
        return None
    while latest - earliest > _RESOLUTION:  # earliest is a run time; there is none from latest to now
        middle = earliest + (latest - earliest) / 2
        run_time = _next(trigger, middle)
        if run_time is not None and run_time <= now:
            earliest = run_time
        else:
            latest = middle
    return earliest


def _next(trigger: Any, moment: datetime) -> datetime | None:
    """The first run time that is not before ``moment``."""
    run_time: datetime | None = trigger.get_next_fire_time(None, moment)
    return None if run_time is None else run_time.astimezone(UTC)  # where a difference of two is their distance


def is_missed(record: LockRecord | None, fire_time: datetime | None) -> bool:
    """Whether the lock has granted fire times, but none as late as ``fire_time``. A new job has missed nothing."""
    if record is None or record.last_fire_time is None or fire_time is None:
        return False
    return record.last_fire_time < fire_time
