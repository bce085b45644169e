"""One of N replicas, on asyncio: start it several times, python asyncio_replica.py"""

import asyncio
import logging
import os
import signal

from apscheduler.events import EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from shedlock_py import scheduler_lock
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, JobSkippedEvent, ShedLockExecutor, drain_async
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider

logging.basicConfig(format="%(process)d %(message)s")
logger = logging.getLogger("replica")
logger.setLevel(logging.INFO)

provider = AsyncSqlAlchemyLockProvider(os.environ.get("SHEDLOCK_STORE", "sqlite:///locks.db"))
scheduler = AsyncIOScheduler(
    executors={"default": ShedLockExecutor(provider=provider)},
    job_defaults={"misfire_grace_time": 30},
    timezone="UTC",  # DST repeats or skips an hour
)


@scheduler.scheduled_job("cron", second="*", id="tick")
@scheduler_lock("tick", lock_at_most_for="30s")
async def tick() -> None: ...


def log_run(event: JobExecutionEvent) -> None:
    what = f"skipped ({event.reason})" if isinstance(event, JobSkippedEvent) else "ran"
    logger.info("%s %s of %s", what, event.job_id, event.scheduled_run_time.isoformat())


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await provider.create_schema()  # safe in all replicas at once
    scheduler.add_listener(log_run, EVENT_JOB_EXECUTED | EVENT_JOB_SKIPPED)
    scheduler.start()
    await stop.wait()
    await drain_async(scheduler, "20s")
    scheduler.shutdown()  # cancels the jobs that still run
    await drain_async(scheduler, "5s")  # until they have released their locks
    await provider.close()  # or a thread of the driver may keep the process from ending


if __name__ == "__main__":
    asyncio.run(main())
