"""One of N replicas: start it several times, python replica.py"""

import os
import threading

from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import configure, release_on_sigterm, scheduler_lock
from shedlock_py.integrations.apscheduler import ShedLockExecutor, drain

configure(os.environ.get("SHEDLOCK_STORE", "sqlite:///locks.db"), create_schema=True)  # safe in all replicas at once
scheduler = BackgroundScheduler(
    executors={"default": ShedLockExecutor("threadpool")},
    job_defaults={"misfire_grace_time": 30},
    timezone="UTC",  # DST repeats or skips an hour
)


@scheduler.scheduled_job("cron", second="*", id="tick")
@scheduler_lock("tick", lock_at_most_for="30s")
def tick() -> None:
    print(f"tick in process {os.getpid()}", flush=True)


def main() -> None:
    release_on_sigterm("20s")
    scheduler.start()
    try:
        threading.Event().wait()
    finally:
        drain(scheduler, "20s")
        scheduler.shutdown(wait=False)


if __name__ == "__main__":
    main()
