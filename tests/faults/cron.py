"""One replica of an app with a cron job every second in a time zone of its own: python -m tests.faults.cron CONFIG

CONFIG is JSON: what ``Store.arguments`` gives, and ``"zone"``. Starts its scheduler, says "ready", waits for a line,
adds the job, and writes "fire-time reason seconds" for each run and each skip, until its standard input ends: the fire
time in UTC, why it was skipped or "ran", and when, on the clock that all processes of a machine share.
"""

from __future__ import annotations

import json
import sys
import threading
from datetime import UTC
from typing import Any

from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import scheduler_lock
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor
from tests.faults.history import monotonic
from tests.support.stores import open_provider


@scheduler_lock("cron", lock_at_most_for="1m")
def cron_job() -> None: ...


def main(config: dict[str, Any]) -> None:
    zone = config.pop("zone")
    provider: Any = open_provider(**config)
    executor = ShedLockExecutor(None, provider, once_per_fire_time=True)
    scheduler = BackgroundScheduler(executors={"default": executor}, timezone=zone)
    mutex = threading.Lock()

    def report(event: Any) -> None:
        reason = event.reason if event.code == EVENT_JOB_SKIPPED else "ran"
        with mutex:
            print(event.scheduled_run_time.astimezone(UTC).isoformat(), reason, monotonic(), flush=True)

    scheduler.add_listener(report, EVENT_JOB_EXECUTED | EVENT_JOB_SKIPPED)
    scheduler.start()
    provider.record("cron")  # what takes long on a busy machine has been done: it shall fire before the moment
    print("ready", flush=True)
    sys.stdin.readline()
    options: dict[str, Any] = {"misfire_grace_time": None, "max_instances": 5, "coalesce": False}
    scheduler.add_job(cron_job, "cron", id="cron", second="*", **options)
    sys.stdin.read()
    scheduler.shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
