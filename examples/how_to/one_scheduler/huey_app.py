"""shedlock lead huey -- huey_consumer huey_app.huey, on two hosts."""

import logging
import os
from datetime import UTC, datetime

from huey import RedisHuey, crontab

from shedlock_py import LockRequest, Skipped, attempt, provider_from_url

huey = RedisHuey("app", url=os.environ.get("BROKER", "redis://localhost/0"))
provider = provider_from_url(os.environ["SHEDLOCK_STORE"])
logger = logging.getLogger(__name__)


def report() -> None:
    logger.warning("report")


@huey.periodic_task(crontab(minute="*/5"))
def report_once() -> None:
    """A consumer looks at once when it starts: the minute may have had its run on the former leader."""
    minute = datetime.now(UTC).replace(second=0, microsecond=0)
    done = attempt(LockRequest("report", "10m", fire_time=minute), report, provider=provider)
    if isinstance(done, Skipped):
        logger.warning("skipped: %s", done.reason)
