"""One replica of an app, for test_replicas.py, with fast jobs in each second.

``python -m tests.apscheduler.replica URL SKEW``. Its clock is SKEW seconds late. It writes one line for each event to
the standard output, "job code run-time reason", until its standard input ends.
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

TENANTS = ("acme", "globex", "initech", "umbrella")


class LateProvider:
    """Delay each acquire, like a replica with a slow clock."""

    def __init__(self, provider: LockProvider, skew: float) -> None:
        self._provider = provider
        self._skew = skew

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def acquire(self, request: LockRequest) -> Lease | None:
        time.sleep(self._skew)
        return self._provider.acquire(request)


@scheduler_lock("cron", lock_at_most_for="1m")
def cron_job() -> None: ...


@scheduler_lock("interval", lock_at_most_for="1m")
def interval_job() -> None: ...


@scheduler_lock("tenant", lock_at_most_for="1m")
def tenant_job(tenant: str) -> None: ...


def main(url: str, skew: float) -> None:
    provider: Any = LateProvider(provider_from_url(url), skew)
    executor = ShedLockExecutor(None, provider)
    scheduler = BackgroundScheduler(executors={"default": executor}, timezone="UTC")
    mutex = threading.Lock()

    def report(event: Any) -> None:
        if hasattr(event, "scheduled_run_time"):
            with mutex:
                reason = getattr(event, "reason", "-")
                print(event.job_id, event.code, event.scheduled_run_time.isoformat(), reason, flush=True)

    scheduler.add_listener(report, EVENT_ALL | EVENT_JOB_SKIPPED)
    options: dict[str, Any] = {"misfire_grace_time": None, "max_instances": 5}
    phase = datetime.now(UTC) - timedelta(seconds=random.uniform(0, 1))  # each replica has its own phase
    scheduler.add_job(cron_job, "cron", id="cron", second="*", **options)
    scheduler.add_job(interval_job, "interval", id="interval", seconds=1, start_date=phase, **options)
    for tenant in TENANTS:
        scheduler.add_job(tenant_job, "cron", id=tenant, args=(tenant,), second="*", **options)
    scheduler.start()
    sys.stdin.read()
    scheduler.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
