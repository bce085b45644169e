"""One replica with one scheduled job, for test_lost_runs.py: ``python -m tests.programs.replica_with_a_job JSON``.

The first line of its standard input has the job's options. The replica creates READY when it has imported everything,
waits for the options, and removes READY when its scheduler has started. It ends when its standard input ends.

The job appends "begin FIRE_TIME" and "end FIRE_TIME" to the report.
"""

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import configure, current_lease, scheduler_lock
from shedlock_py.integrations.apscheduler import ShedLockExecutor


def main(
    url: str, name: str, report: str, ready: str, work: float, lock: dict[str, Any], executor: dict[str, Any]
) -> None:
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    configure(url)

    def write(what: str) -> None:
        lease = current_lease()
        assert lease is not None
        with Path(report).open("a") as file:
            file.write(f"{what} {lease.fire_time and lease.fire_time.isoformat()}\n")

    @scheduler_lock(name, **lock)
    def run() -> None:
        write("begin")
        time.sleep(work)
        write("end")

    scheduler = BackgroundScheduler(executors={"default": ShedLockExecutor(**executor)}, timezone="UTC")
    Path(ready).touch()
    if line := sys.stdin.readline():
        scheduler.add_job(run, id="job", **json.loads(line))
        scheduler.start()
        Path(ready).unlink()
        sys.stdin.read()
        scheduler.shutdown()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
