"""rq cron rq_jobs.py, on two hosts; rq worker, on several."""

import logging
import os

from rq import cron, get_current_job

from shedlock_py import configure, try_hold

configure(os.environ.get("SHEDLOCK_STORE", "redis://localhost/0"), create_schema=True)
logger = logging.getLogger(__name__)


def report() -> None:
    job = get_current_job()
    assert job is not None  # a worker calls this
    made = job.created_at
    with try_hold("report", lock_at_most_for="10m", fire_time=made, once_per="5m") as lease:
        if lease:  # None: the report of these five minutes was written
            logger.warning("writing the report")


cron.register(report, queue_name="default", cron="*/5 * * * *")
