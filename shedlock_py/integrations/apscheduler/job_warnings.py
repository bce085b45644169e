"""Warnings about jobs whose locks cannot be what the user means. Each is logged once per process and job."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import monotonic
from typing import Any

from shedlock_py.integrations.apscheduler.fire_times import is_predictable
from shedlock_py.integrations.apscheduler.options import has_automatic_id

GRACE_SECONDS = 1.0
"""Applications may still add jobs for so long after the start."""
MOST_WARNINGS = 1000
"""After this many there are no more: job ids that are made up for each job would fill the memory."""

_logged: set[tuple[str, str]] = set()


class JobWarnings:
    """The warnings of one executor.

    :param locks: the job ids for which the user names a lock.
    """

    def __init__(self, scheduler: Any, logger: logging.Logger, locks: Iterable[str]) -> None:
        self._scheduler = scheduler
        self._logger = logger
        self._missing = set(locks)
        """Ids in ``locks`` of which no job was submitted yet."""
        self._started_at = monotonic()

    def check(self, job: Any, *, is_unlocked: bool) -> None:
        """Warn if ``job`` has no lock, or if ``locks`` names ids that no job has."""
        self._missing.discard(job.id)
        if self._missing and (is_unlocked or monotonic() - self._started_at > GRACE_SECONDS):
            self._check_ids()
        if is_unlocked:
            self._warn(
                "no lock",
                job.name if has_automatic_id(job) else job.id,
                'job "%s" (id "%s") has no lock, so every replica runs it: decorate its function with @scheduler_lock,'
                " name a lock in locks=, or set lock_all. If no lock is meant, say so: locks={job id: None}",
                job.name,
                job.id,
            )

    def check_trigger(self, job: Any) -> None:
        """Warn if the replicas do not agree on the fire times of ``job``."""
        if not is_predictable(job.trigger):
            self._warn(
                "fire times",
                job.id,
                'once_per_fire_time cannot work for job "%s": each replica has its own fire times for the trigger %s.'
                " Do without jitter, or give the lock a lock_at_least_for.",
                job.id,
                job.trigger,
            )

    def _check_ids(self) -> None:
        try:
            unknown = {job_id for job_id in self._missing if self._scheduler.get_job(job_id) is None}
        except Exception:
            return  # a job store has failed, which the scheduler logs
        self._missing.clear()
        for job_id in sorted(unknown):
            self._warn(
                "unknown id",
                job_id,
                'locks= names a lock for the job id "%s", but the scheduler has no such job: is the id misspelt?'
                " (A job that is added later gets this lock.)",
                job_id,
            )

    def _warn(self, subject: str, key: str, message: str, *args: object) -> None:
        if (subject, key) not in _logged and len(_logged) < MOST_WARNINGS:
            _logged.add((subject, key))
            self._logger.warning(message, *args)
