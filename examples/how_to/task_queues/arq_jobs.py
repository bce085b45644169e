"""arq arq_jobs.WorkerSettings, on several hosts."""

import logging
import os
from datetime import UTC, datetime
from typing import Any

from arq import cron
from arq.connections import RedisSettings

from shedlock_py import configure, try_hold_async

BROKER = os.environ.get("BROKER", "redis://localhost/0")
configure(os.environ.get("SHEDLOCK_STORE", BROKER), create_schema=True)
logger = logging.getLogger(__name__)


async def report(ctx: dict[str, Any]) -> None:
    milliseconds = int(ctx["job_id"].rpartition(":")[2])  # of "cron:report:1795459500123"
    due = datetime.fromtimestamp(milliseconds / 1000, UTC)
    async with try_hold_async("report", lock_at_most_for="10m", fire_time=due) as lease:
        if lease:  # None: that fire time has had its run
            logger.warning("writing the report")


class WorkerSettings:
    cron_jobs = (cron(report, minute=set(range(0, 60, 5))),)
    redis_settings = RedisSettings.from_dsn(BROKER)
    timezone = UTC
