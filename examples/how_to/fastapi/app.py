"""Three workers with a scheduler each: uvicorn app:app --workers 3"""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from apscheduler.events import EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from fastapi import FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py import scheduler_lock
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, JobSkippedEvent, ShedLockExecutor
from shedlock_py.integrations.fastapi import lifespan
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider

logging.basicConfig(format="%(process)d %(message)s")
logger = logging.getLogger("app")
logger.setLevel(logging.INFO)

engine = create_async_engine(os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///app.db"))
provider = AsyncSqlAlchemyLockProvider(engine)
scheduler = AsyncIOScheduler(
    executors={"default": ShedLockExecutor()},
    job_defaults={"misfire_grace_time": 30},
    timezone="UTC",  # DST repeats or skips an hour
)


@scheduler.scheduled_job("cron", second="*", id="tick")
@scheduler_lock("tick", lock_at_most_for="30s")
async def tick() -> None:
    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO tick (worker) VALUES (:worker)"), {"worker": os.getpid()})


def log_run(event: JobExecutionEvent) -> None:
    what = f"skipped ({event.reason})" if isinstance(event, JobSkippedEvent) else "ran"
    logger.info("%s %s of %s", what, event.job_id, event.scheduled_run_time.isoformat())


@asynccontextmanager
async def whole_life(app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS tick (worker INTEGER)"))
    scheduler.add_listener(log_run, EVENT_JOB_EXECUTED | EVENT_JOB_SKIPPED)
    async with lifespan(provider, start=[scheduler], drain="20s")(app):
        yield
    await engine.dispose()


app = FastAPI(lifespan=whole_life)


@app.get("/ticks")
async def ticks() -> int:
    async with engine.connect() as connection:
        return (await connection.scalar(text("SELECT count(*) FROM tick"))) or 0
