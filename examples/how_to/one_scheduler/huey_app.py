"""shedlock lead huey -- huey_consumer huey_app.huey, on two hosts."""

import logging
import os

from huey import RedisHuey, crontab

from shedlock_py import attempt, provider_from_url

huey = RedisHuey("app", url=os.environ.get("BROKER", "redis://localhost/0"))
provider = provider_from_url(os.environ["SHEDLOCK_STORE"])
logger = logging.getLogger(__name__)


def report() -> None:
    logger.warning("report")


@huey.periodic_task(crontab(minute="*/5"))
def report_once() -> None:
    """A consumer looks at once when it starts: these five minutes may have had their run on the former leader."""
    done = attempt("report", report, lock_at_most_for="10m", once_per="5m", provider=provider)
    if not done:
        logger.warning("skipped: %s", done.reason)
