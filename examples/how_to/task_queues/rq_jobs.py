"""rq cron rq_jobs.py, on two hosts; rq worker, on several."""

import logging
import os

from rq import cron, get_current_job

from shedlock_py import LockRequest, hold, provider_from_url

provider = provider_from_url(os.environ.get("SHEDLOCK_STORE", "redis://localhost/0"))
logger = logging.getLogger(__name__)


def report() -> None:
    job = get_current_job()
    assert job is not None  # it is a worker that calls this
    minute = job.created_at.replace(second=0, microsecond=0)
    with hold(LockRequest("report", "10m", fire_time=minute), provider=provider) as lease:
        if lease:  # None: that fire time has had its run
            logger.warning("writing the report")


cron.register(report, queue_name="default", cron="*/5 * * * *")
