"""Warnings about the locks of jobs: one WARNING per job and process."""

from __future__ import annotations

import logging
from typing import Any

from shedlock_py.integrations.apscheduler.options import has_automatic_id

MOST_WARNINGS = 1000
"""The most warnings. Without a limit, job ids made for each job would fill the memory."""

_warned: set[tuple[str, str]] = set()
"""The subjects and jobs of all warnings so far: each warning comes once per process."""


def warn_once(logger: logging.Logger, subject: str, key: str, message: str, *args: object) -> None:
    if (subject, key) not in _warned and len(_warned) < MOST_WARNINGS:
        _warned.add((subject, key))
        logger.warning(message, *args)


def warn_of_plain_lock(logger: logging.Logger, job: Any, reason: str) -> None:
    label = job.name if has_automatic_id(job) else job.id
    warn_once(
        logger,
        "plain lock",
        label,
        'job "%s" gets a plain lock, because %s. So a short job may run on several replicas. Change that, or give the'
        " lock a lock_at_least_for that is longer than the replicas are apart. If a plain lock is intended, set"
        " once_per_fire_time=False",
        label,
        reason,
    )


def warn_of_no_recovery(logger: logging.Logger, job: Any) -> None:
    label = job.name if has_automatic_id(job) else job.id
    message = 'the runs of job "%s" are not recovered (recover=True): its lock is plain, so its runs have no fire times'
    warn_once(logger, "no recovery", label, message, label)


def warn_of_shared_lock(logger: logging.Logger, lock_name: str, job: Any, other_id: str) -> None:
    warn_once(
        logger,
        "shared lock",
        lock_name,
        'jobs "%s" and "%s" share the lock "%s". Each job would use up the fire times of the other, so the jobs of this'
        " lock get plain locks: a short job may run on several replicas, and a job may be skipped while another job has"
        " the lock. Give each job a lock of its own: by a template with a parameter of the function, such as"
        ' "%s-{tenant}", or in locks={job id: lock name}',
        other_id,
        job.id,
        lock_name,
        lock_name,
    )
