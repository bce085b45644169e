"""One replica: an ordinary APScheduler app. Each of the three processes runs exactly this.

``tick`` and ``report`` are the jobs; ``main`` makes them run once across all replicas. The code between them only
reports events to the demo. The process ends when its standard input ends.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from typing import Any

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    EVENT_JOB_SUBMITTED,
)
from apscheduler.schedulers.background import BackgroundScheduler

from examples.demo.observation import Kind, Observation
from examples.demo.plan import REPORT, TICK, JobPlan
from shedlock_py import configure, scheduler_lock, set_active
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor

stopping = threading.Event()


@scheduler_lock(TICK.lock_name, lock_at_most_for=TICK.lock_at_most_for)
def tick() -> None:
    """The fast job: done before the other replicas' clocks reach the same second."""
    with told_as_a_run(TICK):
        pass


@scheduler_lock(REPORT.lock_name, lock_at_most_for=REPORT.lock_at_most_for)
def report() -> None:
    """The slow job: due again before it is done."""
    with told_as_a_run(REPORT):
        stopping.wait(REPORT.takes)


def main() -> None:
    options = parse_arguments()
    configure(options.store, create_schema=True, holder=options.name)
    if options.no_lock:
        set_active(False)

    scheduler = BackgroundScheduler(
        executors={"default": ShedLockExecutor("threadpool")},
        # A late run is better than none, in order, even on a busy machine: the demo counts every fire time.
        job_defaults={"coalesce": False, "misfire_grace_time": None},
        timezone=UTC,
    )
    scheduler.add_job(tick, "cron", second=f"*/{TICK.period}", id=TICK.name)
    scheduler.add_job(report, "cron", second=f"*/{REPORT.period}", id=REPORT.name, max_instances=2)
    scheduler.add_listener(tell_event, sum(KINDS))
    scheduler.start()

    tell("ready")
    sys.stdin.read()
    stopping.set()
    scheduler.shutdown()


# For the demo: events as JSON lines on standard output

KINDS: dict[int, Kind] = {
    EVENT_JOB_SUBMITTED: "submitted",
    EVENT_JOB_EXECUTED: "executed",
    EVENT_JOB_SKIPPED: "skipped",
    EVENT_JOB_ERROR: "failed",
    EVENT_JOB_MISSED: "not run",
    EVENT_JOB_MAX_INSTANCES: "not run",
}
run_numbers = itertools.count(1)
name = ""


def parse_arguments() -> argparse.Namespace:
    global name
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--no-lock", action="store_true")
    options = parser.parse_args()
    name = options.name
    return options


def tell(kind: Kind, **more: Any) -> None:
    line = Observation(kind, name, os.getpid(), time.monotonic(), **more).to_json() + "\n"
    os.write(sys.stdout.fileno(), line.encode())  # one write, so that threads do not mix their lines


@contextmanager
def told_as_a_run(job: JobPlan) -> Iterator[None]:
    run = next(run_numbers)
    tell("started", job=job.name, run=run)
    try:
        yield
    finally:
        tell("ended", job=job.name, run=run)


def tell_event(event: Any) -> None:
    # Submissions have several times; other events have one.
    times = event.scheduled_run_times if hasattr(event, "scheduled_run_times") else [event.scheduled_run_time]
    detail = getattr(event, "reason", "") or repr(getattr(event, "exception", None) or "")
    for fire_time in times:
        tell(KINDS[event.code], job=event.job_id, fire_time=int(fire_time.timestamp()), detail=detail.strip("'"))


if __name__ == "__main__":
    main()
