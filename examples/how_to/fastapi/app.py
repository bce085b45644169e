"""Three workers with a scheduler each: uvicorn app:app --workers 3"""

import os

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from fastapi import FastAPI

from shedlock_py import provider_from_url, scheduler_lock
from shedlock_py.integrations.apscheduler import ShedLockExecutor
from shedlock_py.integrations.fastapi import lifespan

provider = provider_from_url(os.environ.get("DATABASE_URL", "sqlite:///app.db"))
scheduler = AsyncIOScheduler(
    executors={"default": ShedLockExecutor()},
    job_defaults={"misfire_grace_time": 30},
    timezone="UTC",  # DST repeats or skips an hour
)


@scheduler.scheduled_job("cron", second="*", id="tick")
@scheduler_lock("tick", lock_at_most_for="30s")
async def tick() -> None:
    print(f"tick in process {os.getpid()}", flush=True)


app = FastAPI(lifespan=lifespan(provider, start=[scheduler], drain="20s"))
