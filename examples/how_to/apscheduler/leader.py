"""One of N nodes that share a persistent job store: start it several times, python leader.py"""

import os
import threading

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import LeaderElector, configure, release_on_sigterm
from shedlock_py.integrations.apscheduler import lead

DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite:///app.db")
configure(DATABASE_URL, create_schema=True)  # safe in all nodes at once
scheduler = BackgroundScheduler(
    jobstores={"default": SQLAlchemyJobStore(DATABASE_URL)},
    job_defaults={"misfire_grace_time": None, "coalesce": False},  # runs that came due without a leader still run
    timezone="UTC",  # DST repeats or skips an hour
)


def tick() -> None:
    print(f"tick in process {os.getpid()}", flush=True)


def main() -> None:
    release_on_sigterm("20s")
    scheduler.add_job(tick, "cron", second="*", id="tick", replace_existing=True)
    with lead(scheduler, LeaderElector(DATABASE_URL, "scheduler")):
        print("started", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
