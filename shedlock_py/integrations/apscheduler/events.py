"""The events that ShedLockExecutor adds to APScheduler's."""

from __future__ import annotations

from datetime import datetime
from traceback import format_tb

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MISSED, JobExecutionEvent

EVENT_JOB_SKIPPED = 2**24
"""The job did not run here because of its lock. Not in ``EVENT_ALL``: listen for ``EVENT_ALL | EVENT_JOB_SKIPPED``."""

SKIP_EVENTS = {"skipped": EVENT_JOB_SKIPPED, "missed": EVENT_JOB_MISSED, "executed": EVENT_JOB_EXECUTED}


class JobSkippedEvent(JobExecutionEvent):
    """A fire time at which the job did not run here (code :data:`EVENT_JOB_SKIPPED`). The only event of that run.

    :ivar lock_name: the lock it did not get.
    :ivar reason: ``"held"``: another holder has it. ``"already_ran"``: this fire time was granted before
        (``once_per_fire_time``). ``"provider_error"``: the store failed (``on_provider_error="skip"``).
    """

    def __init__(self, job_id: str, jobstore: str, run_time: datetime, lock_name: str, reason: str) -> None:
        super().__init__(EVENT_JOB_SKIPPED, job_id, jobstore, run_time)
        self.lock_name = lock_name
        self.reason = reason


def error_event(job_id: str, jobstore: str, run_time: datetime, error: BaseException) -> JobExecutionEvent:
    traceback = "".join(format_tb(error.__traceback__))
    return JobExecutionEvent(EVENT_JOB_ERROR, job_id, jobstore, run_time, exception=error, traceback=traceback)


def cannot_await(job_id: str) -> TypeError:
    return TypeError(
        f'job "{job_id}" is a coroutine function, which its executor cannot await: run it with the executor of an'
        " AsyncIOScheduler or TornadoScheduler"
    )
