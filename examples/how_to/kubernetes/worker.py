"""Each pod of the deployment runs this program."""

import os
import threading
import time

from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import configure, release_on_sigterm, scheduler_lock
from shedlock_py.integrations.apscheduler import ShedLockExecutor, drain

configure(os.environ["SHEDLOCK_STORE"], create_schema=True)  # safe in all pods at once
scheduler = BackgroundScheduler(
    executors={"default": ShedLockExecutor("threadpool")},
    job_defaults={"misfire_grace_time": 30},
    timezone="UTC",  # DST repeats or skips an hour
)


@scheduler.scheduled_job("cron", second="*/5", id="import")
@scheduler_lock("import", lock_at_most_for="30s", keep_alive=True)
def import_batch() -> None:
    print(f"{os.getpid()} import begun", flush=True)
    time.sleep(2)
    print(f"{os.getpid()} import done", flush=True)


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
