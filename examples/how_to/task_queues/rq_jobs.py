"""rq cron rq_jobs.py, on two hosts; rq worker, on several."""

import logging
import os

from rq import cron, get_current_job

from shedlock_py import LockRequest, provider_from_url, try_hold

provider = provider_from_url(os.environ.get("SHEDLOCK_STORE", "redis://localhost/0"))
logger = logging.getLogger(__name__)


def report() -> None:
    job = get_current_job()
    assert job is not None  # it is a worker that calls this
    made = job.created_at
    fire_time = made.replace(minute=made.minute // 5 * 5, second=0, microsecond=0)  # as the line of cron says
    with try_hold(LockRequest("report", "10m", fire_time=fire_time), provider=provider) as lease:
        if lease:  # None: that fire time has had its run
            logger.warning("writing the report")


cron.register(report, queue_name="default", cron="*/5 * * * *")
