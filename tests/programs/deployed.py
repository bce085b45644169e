"""One replica of a deployment, for test_deploys.py.

``python -m tests.programs.deployed JSON``, or ``app`` for an ASGI server, with the JSON in the variable ``REPLICA``.
The job runs for each fire time. The log gets a line at the replica's start, and at each run's start and end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from fastapi import FastAPI

from shedlock_py import current_lease, scheduler_lock
from shedlock_py.integrations.apscheduler import ShedLockExecutor
from shedlock_py.integrations.fastapi import Lifespan, lifespan, repeat_every


class Replica:
    """:param kind: "scheduler" (APScheduler) or "repeated" (``repeat_every``).
    :param every: seconds from one fire time to the next.
    :param work: how long the job runs, in seconds.
    :param lock: the lock's options.
    :param options: options of ``lifespan``.
    """

    def __init__(
        self, number: int, kind: str, url: str, log: str, *,
        name: str, every: int, work: float, lock: dict[str, Any], options: dict[str, Any],
    ) -> None:  # fmt: skip
        self._number, self._log, self._work = number, log, work
        lock = {"lock_at_most_for": "6s", "keep_alive": True, **lock}
        self.life: Lifespan = lifespan(url, start=[self._repeated(kind, name, every, lock)], **options)

    def _repeated(self, kind: str, name: str, every: int, lock: dict[str, Any]) -> Any:
        if kind == "repeated":
            return repeat_every(seconds=every, lock=name, **lock)(self._job)
        scheduler = AsyncIOScheduler(executors={"default": ShedLockExecutor()}, timezone="UTC")
        job = scheduler_lock(name, **lock)(self._job)
        scheduler.add_job(job, "cron", second=f"*/{every}", id="job", misfire_grace_time=30)
        return scheduler

    def note(self, what: str) -> None:
        lease = current_lease()
        fire_time = lease.fire_time.isoformat() if lease and lease.fire_time else None
        with open(self._log, "a") as file:
            file.write(f"{what} {fire_time} {self._number}\n")

    async def _job(self) -> None:
        self.note("begun")
        await asyncio.sleep(self._work)
        self.note("ended")


@asynccontextmanager
async def life(app: FastAPI) -> AsyncIterator[None]:
    replica = Replica(**json.loads(os.environ["REPLICA"]))
    async with replica.life(app):
        replica.note("up")
        yield


logging.basicConfig(format="%(levelname)s %(name)s %(message)s", level=logging.WARNING)
app = FastAPI(lifespan=life)


async def main(text: str) -> None:
    replica = Replica(**json.loads(text))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with replica.life(None):
        replica.note("up")
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
