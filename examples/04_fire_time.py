"""Fire times: a job that ends before the other replica's clock reaches its fire time, and still runs once.

python examples/04_fire_time.py

The store remembers the newest fire time that ran, and rejects it a second time. This is the default. A plain lock is
free again when the second replica, with a slightly late clock, comes for the same fire time.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from apscheduler.events import EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import InMemoryLockProvider, scheduler_lock
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, JobSkippedEvent, ShedLockExecutor


@scheduler_lock("bill-customers", lock_at_most_for="5m")
def bill_customers() -> None:
    """Done at once."""


def fire_on_two_replicas(once_per_fire_time: bool | None) -> None:
    provider = InMemoryLockProvider()  # both "replicas" live in this process
    fire_time = datetime.now(UTC).replace(microsecond=0)
    for name in ("replica 1", "replica 2"):  # in sequence: the second replica's clock is late
        scheduler = BackgroundScheduler(
            executors={"default": ShedLockExecutor(provider=provider, once_per_fire_time=once_per_fire_time)},
            timezone=UTC,
        )

        done = threading.Event()

        def report(event: JobExecutionEvent, name: str = name, done: threading.Event = done) -> None:
            outcome = f"skipped ({event.reason})" if isinstance(event, JobSkippedEvent) else "ran"
            print(f"  {name}: {outcome}")
            done.set()

        scheduler.add_listener(report, EVENT_JOB_EXECUTED | EVENT_JOB_SKIPPED)
        scheduler.add_job(bill_customers, "date", run_date=fire_time, misfire_grace_time=None)
        scheduler.start()
        done.wait(10)
        scheduler.shutdown()


def main() -> None:
    print("by default:")
    fire_on_two_replicas(once_per_fire_time=None)
    print("a plain lock:")
    fire_on_two_replicas(once_per_fire_time=False)


if __name__ == "__main__":
    main()
