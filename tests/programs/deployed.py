"""One replica of a deployment: python -m tests.programs.deployed KIND URL LOG SECONDS OPTIONS

KIND is "scheduler" (APScheduler) or "repeated" (``repeat_every``). The job runs SECONDS for each fire time, each
second or in slots of three seconds. LOG gets a line at the start of the replica, and when a run begins and ends.
OPTIONS are JSON: those of ``lifespan``, and "lock" with those of the lock.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from typing import Any

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from shedlock_py import current_lease, scheduler_lock
from shedlock_py.integrations.apscheduler import ShedLockExecutor
from shedlock_py.integrations.fastapi import lifespan, repeat_every


async def main(kind: str, url: str, log: str, seconds: str, options: str) -> None:
    given: dict[str, Any] = json.loads(options)
    lock = {"lock_at_most_for": "1s", "keep_alive": True} | given.pop("lock", {})

    def note(what: str) -> None:
        lease = current_lease()
        with open(log, "a") as file:
            file.write(f"{what} {lease.fire_time if lease else None} {os.getpid()}\n")

    async def job() -> None:
        note("begun")
        await asyncio.sleep(float(seconds))
        note("ended")

    start: list[Any] = []
    if kind == "scheduler":
        scheduler = AsyncIOScheduler(executors={"default": ShedLockExecutor()}, timezone="UTC")
        scheduler.add_job(scheduler_lock("job", **lock)(job), "cron", second="*", id="job", misfire_grace_time=30)
        start.append(scheduler)
    else:
        start.append(repeat_every(seconds=3, lock="job", **lock)(job))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with lifespan(url, start=start, **given)(None):
        note("up")
        await stop.wait()


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s", level=logging.WARNING)
    asyncio.run(main(*sys.argv[1:]))
