"""One of N replicas, on asyncio: start it several times, python asyncio_replica.py"""

import asyncio
import os
import signal

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from shedlock_py import configure, scheduler_lock
from shedlock_py.integrations.apscheduler import ShedLockExecutor, drain_async

configure(os.environ.get("SHEDLOCK_STORE", "sqlite:///locks.db"), create_schema=True)  # safe in all replicas at once
scheduler = AsyncIOScheduler(
    executors={"default": ShedLockExecutor()},
    job_defaults={"misfire_grace_time": 30},
    timezone="UTC",  # DST repeats or skips an hour
)


@scheduler.scheduled_job("cron", second="*", id="tick")
@scheduler_lock("tick", lock_at_most_for="30s")
async def tick() -> None:
    print(f"tick in process {os.getpid()}", flush=True)


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    scheduler.start()
    await stop.wait()
    await drain_async(scheduler, "20s")
    scheduler.shutdown()  # cancels the jobs that still run
    await drain_async(scheduler, "5s")  # until they have released their locks


if __name__ == "__main__":
    asyncio.run(main())
