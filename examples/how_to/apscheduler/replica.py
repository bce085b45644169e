"""One of N replicas: start it several times, python replica.py"""

import logging
import os
import threading

from apscheduler.events import EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import configure, provider_from_url, release_on_sigterm, scheduler_lock
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, JobSkippedEvent, ShedLockExecutor, drain

logging.basicConfig(format="%(process)d %(message)s")
logger = logging.getLogger("replica")
logger.setLevel(logging.INFO)

provider = provider_from_url(os.environ.get("SHEDLOCK_STORE", "sqlite:///locks.db"))
scheduler = BackgroundScheduler(
    executors={"default": ShedLockExecutor("threadpool")},
    job_defaults={"misfire_grace_time": 30},
    timezone="UTC",  # DST repeats or skips an hour
)


@scheduler.scheduled_job("cron", second="*", id="tick")
@scheduler_lock("tick", lock_at_most_for="30s")
def tick() -> None: ...


def log_run(event: JobExecutionEvent) -> None:
    what = f"skipped ({event.reason})" if isinstance(event, JobSkippedEvent) else "ran"
    logger.info("%s %s of %s", what, event.job_id, event.scheduled_run_time.isoformat())


def main() -> None:
    provider.create_schema()  # safe in all replicas at once
    configure(provider)
    release_on_sigterm("20s")
    scheduler.add_listener(log_run, EVENT_JOB_EXECUTED | EVENT_JOB_SKIPPED)
    scheduler.start()
    try:
        threading.Event().wait()
    finally:
        drain(scheduler, "20s")
        scheduler.shutdown(wait=False)


if __name__ == "__main__":
    main()
