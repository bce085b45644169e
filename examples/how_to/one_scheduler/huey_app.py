"""shedlock lead huey -- huey_consumer huey_app.huey, on two hosts."""

import logging
import os

from huey import RedisHuey, crontab

from shedlock_py import Skipped, configure, scheduler_lock

huey = RedisHuey("app", url=os.environ.get("BROKER", "redis://localhost/0"))
configure(os.environ["SHEDLOCK_STORE"], create_schema=True)
logger = logging.getLogger(__name__)


def log_skip(skipped: Skipped) -> None:
    logger.warning("skipped: %s", skipped.reason)


@huey.periodic_task(crontab(minute="*/5"))
@scheduler_lock("report", lock_at_most_for="10m", once_per="5m", on_skip=log_skip)
def report() -> None:
    logger.warning("report")
