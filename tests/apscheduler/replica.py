"""One replica of an app, for test_replicas.py: a cron job and an interval job, every second, whose bodies are fast.

``python -m tests.apscheduler.replica URL``. Writes one line for each event to the standard output, "job code run-time",
until its standard input ends.
"""

import random
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.events import EVENT_ALL
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import Lease, LockProvider, LockRequest, provider_from_url, scheduler_lock
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor

SKEW = 0.08  # seconds


class LateProvider:
    """Delays each acquire by up to 80 ms, like a replica whose clock is behind."""

    def __init__(self, provider: LockProvider) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def acquire(self, request: LockRequest) -> Lease | None:
        time.sleep(random.uniform(0, SKEW))
        return self._provider.acquire(request)


@scheduler_lock("cron", lock_at_most_for="1m")
def cron_job() -> None: ...


@scheduler_lock("interval", lock_at_most_for="1m")
def interval_job() -> None: ...


def main(url: str) -> None:
    provider: Any = LateProvider(provider_from_url(url))
    executor = ShedLockExecutor(None, provider, once_per_fire_time=True)
    scheduler = BackgroundScheduler(executors={"default": executor}, timezone="UTC")
    mutex = threading.Lock()

    def report(event: Any) -> None:
        if hasattr(event, "scheduled_run_time"):
            with mutex:
                print(event.job_id, event.code, event.scheduled_run_time.isoformat(), flush=True)

    scheduler.add_listener(report, EVENT_ALL | EVENT_JOB_SKIPPED)
    options: dict[str, Any] = {"misfire_grace_time": None, "max_instances": 5}
    phase = datetime.now(UTC) - timedelta(seconds=random.uniform(0, 1))  # of its own in each replica
    scheduler.add_job(cron_job, "cron", id="cron", second="*", **options)
    scheduler.add_job(interval_job, "interval", id="interval", seconds=1, start_date=phase, **options)
    scheduler.start()
    sys.stdin.read()
    scheduler.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
