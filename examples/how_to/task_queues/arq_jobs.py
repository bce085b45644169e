"""arq arq_jobs.WorkerSettings, on several hosts."""

import logging
import os
from datetime import UTC, datetime
from typing import Any

from arq import cron
from arq.connections import RedisSettings

from shedlock_py import async_provider_from_url, try_hold_async

BROKER = os.environ.get("BROKER", "redis://localhost/0")
provider: Any = async_provider_from_url(os.environ.get("SHEDLOCK_STORE", BROKER))
logger = logging.getLogger(__name__)


async def report(ctx: dict[str, Any]) -> None:
    milliseconds = int(ctx["job_id"].rpartition(":")[2])  # of "cron:report:1795459500123"
    due = datetime.fromtimestamp(milliseconds / 1000, UTC)
    async with try_hold_async("report", lock_at_most_for="10m", fire_time=due, provider=provider) as lease:
        if lease:  # None: that fire time has had its run
            logger.warning("writing the report")


async def close(ctx: dict[str, Any]) -> None:
    await provider.close()


class WorkerSettings:
    cron_jobs = (cron(report, minute=set(range(0, 60, 5))),)
    redis_settings = RedisSettings.from_dsn(BROKER)
    timezone = UTC
    on_shutdown = close
