"""What users write to the executor's options, and what triggers mean by a fire time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from apscheduler.triggers.interval import IntervalTrigger

from shedlock_py import AsyncLockProvider, ConfigurationError, LockProvider, LockRequest
from shedlock_py.decorator import LockSpec

try:
    from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
except ImportError:  # APScheduler 3.10
    CalendarIntervalTrigger = None

T = TypeVar("T")
Provider = LockProvider | AsyncLockProvider
Lock = str | Mapping[str, Any] | LockRequest | None
"""A lock in `locks` or from `lock_extractor`: its name; a dict with "name" and perhaps "lock_at_most_for" and
"lock_at_least_for"; a whole request; or None for no lock, which in `locks` says that none is meant."""

_AUTOMATIC_ID = re.compile(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")  # uuid4().hex
BOOLEANS = {"true": True, "false": False}
_LOCK_FIELDS = {"name", "lock_at_most_for", "lock_at_least_for"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = _EPOCH.toordinal()


def choose(option: str, value: object, choices: Mapping[str, T]) -> T:
    """What ``value`` stands for: one of ``choices`` or, from a configuration file, its text."""
    chosen = str(value).strip().lower()
    if chosen not in choices:
        raise ConfigurationError(f"{option} must be one of {', '.join(choices)}; not {value!r}")
    return choices[chosen]


def check_scheduler(scheduler: Any, call: str) -> None:
    """:raises ConfigurationError: it is something else, perhaps an extension's object that has a scheduler."""
    if hasattr(scheduler, "_process_jobs"):
        return
    kind = type(scheduler).__name__
    if hasattr(getattr(scheduler, "scheduler", None), "_process_jobs"):
        raise ConfigurationError(
            f"{kind} is not a scheduler, but has one: give {call} its attribute .scheduler,"
            " as in install(flask_apscheduler.scheduler)"
        )
    raise ConfigurationError(f"{call} needs a scheduler: {kind} is not a scheduler of APScheduler 3")


def find_lock_spec(function: Any) -> LockSpec | None:
    """What ``@scheduler_lock`` left on a job's function, method, partial or callable object."""
    while isinstance(function, partial):
        function = function.func
    for candidate in (function, type(function).__call__):
        spec = getattr(candidate, "__shedlock__", None)
        if isinstance(spec, LockSpec):
            return spec
    return None


def parse_lock(lock: object, where: str) -> LockSpec | LockRequest | None:
    if lock is None or isinstance(lock, LockRequest):
        return lock
    fields = {"name": lock} if isinstance(lock, str) else lock
    if not isinstance(fields, Mapping) or not {"name"} <= set(fields) <= _LOCK_FIELDS:
        raise ConfigurationError(
            f"{where} must be a lock name, a dict with 'name' and perhaps 'lock_at_most_for' and 'lock_at_least_for',"
            f" a LockRequest, or None for no lock; not {lock!r}"
        )
    name = fields["name"]
    template = name.replace("{", "{{").replace("}", "}}") if isinstance(name, str) else name  # it is none
    return LockSpec(template, fields.get("lock_at_most_for"), fields.get("lock_at_least_for"))


def has_automatic_id(job: Any) -> bool:
    return _AUTOMATIC_ID.fullmatch(job.id) is not None


def explicit_id(job: Any) -> str:
    if has_automatic_id(job):
        raise ConfigurationError(
            f'job "{job.name}" has no id of its own, and the automatic one differs in each replica, so lock_all cannot'
            " name its lock: give the job an id, or give it an id and exclude it with locks={id: None}"
        )
    return str(job.id)


# Warnings

_warned: set[tuple[str, str]] = set()
MOST_WARNINGS = 1000
"""So many are remembered, or job ids that are made up for each job would fill the memory. Then there are no more."""


def is_news(subject: str, job_id: str) -> bool:
    """Whether this process has not been warned of ``subject`` for this job yet."""
    if (subject, job_id) in _warned or len(_warned) >= MOST_WARNINGS:
        return False
    _warned.add((subject, job_id))
    return True


# Fire times


def fire_time_of(trigger: Any, run_time: datetime) -> datetime:
    """The time that stands for this run in every replica: for an interval the start of its slot."""
    if isinstance(trigger, IntervalTrigger):
        interval: timedelta = trigger.interval
        return _EPOCH + (run_time - _EPOCH) // interval * interval
    if is_calendar_interval(trigger):
        return _start_of_calendar_slot(trigger, run_time)
    return run_time


def is_calendar_interval(trigger: Any) -> bool:
    return CalendarIntervalTrigger is not None and isinstance(trigger, CalendarIntervalTrigger)


def _start_of_calendar_slot(trigger: Any, run_time: datetime) -> datetime:
    """Midnight of the first day of the slot, where the trigger is: so never later than the run.

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
