"""periodiq dramatiq_jobs, on two hosts; dramatiq dramatiq_jobs, on several."""

import logging
import os
from datetime import datetime

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage
from periodiq import PeriodiqMiddleware, cron

from shedlock_py import LockRequest, Skipped, attempt, provider_from_url

BROKER = os.environ.get("BROKER", "redis://localhost/0")
broker = RedisBroker(url=BROKER)
broker.add_middleware(PeriodiqMiddleware(skip_delay=30))
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)
provider = provider_from_url(os.environ.get("SHEDLOCK_STORE", BROKER))
logger = logging.getLogger(__name__)


def write_report() -> None:
    logger.warning("writing the report")


@dramatiq.actor(periodic=cron("*/5 * * * *"), max_retries=0)
def report() -> None:
    message = CurrentMessage.get_current_message()
    assert message is not None  # it is a worker that calls this
    minute = datetime.fromisoformat(message.options["scheduled_at"]).replace(second=0, microsecond=0)
    done = attempt(LockRequest("report", "10m", fire_time=minute), write_report, provider=provider)
    if isinstance(done, Skipped):
        logger.warning("skipped: %s", done.reason)
