"""rq cron rq_jobs.py, on two hosts; rq worker, on several."""

import logging
import os

from rq import cron, get_current_job

from shedlock_py import LockRequest, Skipped, attempt, provider_from_url

provider = provider_from_url(os.environ.get("SHEDLOCK_STORE", "redis://localhost/0"))
logger = logging.getLogger(__name__)


def write_report() -> None:
    logger.warning("writing the report")


def report() -> None:
    job = get_current_job()
    assert job is not None  # it is a worker that calls this
    minute = job.created_at.replace(second=0, microsecond=0)
    done = attempt(LockRequest("report", "10m", fire_time=minute), write_report, provider=provider)
    if isinstance(done, Skipped):
        logger.warning("skipped: %s", done.reason)


cron.register(report, queue_name="default", cron="*/5 * * * *")
