"""python scheduled.py, on several hosts."""

import logging
import os
import time
from collections.abc import Callable

import schedule

from shedlock_py import configure, scheduler_lock

logger = logging.getLogger(__name__)


@scheduler_lock("clean-up", lock_at_most_for="9m", lock_at_least_for="9m")
def clean_up() -> None:
    logger.warning("cleaning up")


def run(job: Callable[[], object]) -> None:
    try:
        job()
    except Exception:  # of the job, or of the store: it would end the loop below
        logger.exception("a job failed")


configure(os.environ.get("SHEDLOCK_STORE", "redis://localhost/0"), create_schema=True)
schedule.every(10).minutes.do(run, clean_up)
while True:
    schedule.run_pending()
    time.sleep(1)
