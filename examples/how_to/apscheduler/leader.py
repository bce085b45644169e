"""One of N nodes that share a persistent job store: start it several times, python leader.py"""

import logging
import os
import threading

from apscheduler.events import EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import LeaderElector, provider_from_url, release_on_sigterm
from shedlock_py.integrations.apscheduler import lead

logging.basicConfig(format="%(process)d %(message)s")
logger = logging.getLogger("node")
logger.setLevel(logging.INFO)

DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite:///app.db")
provider = provider_from_url(DATABASE_URL)
scheduler = BackgroundScheduler(
    jobstores={"default": SQLAlchemyJobStore(DATABASE_URL)},
    job_defaults={"misfire_grace_time": None, "coalesce": False},  # what came due while nobody led still runs
    timezone="UTC",  # DST repeats or skips an hour
)


def tick() -> None: ...


def log_run(event: JobExecutionEvent) -> None:
    logger.info("ran %s of %s", event.job_id, event.scheduled_run_time.isoformat())


def main() -> None:
    provider.create_schema()  # safe in all nodes at once
    release_on_sigterm("20s")
    scheduler.add_listener(log_run, EVENT_JOB_EXECUTED)
    scheduler.add_job(tick, "cron", second="*", id="tick", replace_existing=True)
    with lead(scheduler, LeaderElector(provider, "scheduler")):
        logger.info("started")
        threading.Event().wait()


if __name__ == "__main__":
    main()
