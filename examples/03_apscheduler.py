"""APScheduler: an executor that wraps your executor, and events for skips.

python examples/03_apscheduler.py
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue

from apscheduler.events import EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import LockProvider, provider_from_url, scheduler_lock
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, JobSkippedEvent, ShedLockExecutor


@scheduler_lock("clean-up", lock_at_most_for="5m", lock_at_least_for="10s")
def clean_up() -> None:
    """Done at once; lock_at_least_for prevents a second run on a replica with a late clock."""


def send_newsletter() -> None:
    """Not decorated: ``locks={…}`` below names its lock."""


outcomes: Queue[str] = Queue()


def start_replica(name: str, provider: LockProvider, run_date: datetime) -> BackgroundScheduler:
    scheduler = BackgroundScheduler(
        executors={
            "default": ShedLockExecutor(
                {"type": "threadpool", "max_workers": 4},  # any executor of APScheduler, as you would configure it
                provider,
                locks={"newsletter": {"name": "newsletter", "lock_at_most_for": "1h", "lock_at_least_for": "10s"}},
            )
        },
        timezone=UTC,
    )

    def report(event: JobExecutionEvent) -> None:
        if isinstance(event, JobSkippedEvent):
            outcomes.put(f"{name}: skipped {event.job_id}, lock {event.lock_name} is {event.reason}")
        else:
            outcomes.put(f"{name}: ran {event.job_id}")

    scheduler.add_listener(report, EVENT_JOB_EXECUTED | EVENT_JOB_SKIPPED)
    scheduler.add_job(clean_up, "date", run_date=run_date, id="clean-up", misfire_grace_time=None)
    scheduler.add_job(send_newsletter, "date", run_date=run_date, id="newsletter", misfire_grace_time=None)
    scheduler.start()
    return scheduler


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        provider = provider_from_url(f"sqlite:///{Path(directory) / 'locks.db'}")
        provider.create_schema()
        now = datetime.now(UTC)  # replicas have one schedule, so a job has the same fire time on each
        replicas = [start_replica(name, provider, now) for name in ("replica 1", "replica 2")]
        for _ in range(4):  # two jobs on two replicas
            print(outcomes.get(timeout=10))
        for scheduler in replicas:
            scheduler.shutdown()


if __name__ == "__main__":
    main()
