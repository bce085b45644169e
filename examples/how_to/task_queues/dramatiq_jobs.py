"""periodiq dramatiq_jobs, on two hosts; dramatiq dramatiq_jobs, on several."""

import logging
import os
from datetime import datetime

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage
from periodiq import PeriodiqMiddleware, cron

from shedlock_py import configure, try_hold

BROKER = os.environ.get("BROKER", "redis://localhost/0")
broker = RedisBroker(url=BROKER)
broker.add_middleware(PeriodiqMiddleware(skip_delay=240))  # seconds; a message that waited longer is dropped
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)
configure(os.environ.get("SHEDLOCK_STORE", BROKER), create_schema=True)
logger = logging.getLogger(__name__)


@dramatiq.actor(periodic=cron("*/5 * * * *"), max_retries=0)
def report() -> None:
    message = CurrentMessage.get_current_message()
    assert message is not None  # a worker calls this
    sent = datetime.fromisoformat(message.options["scheduled_at"])
    with try_hold("report", lock_at_most_for="10m", fire_time=sent, once_per="5m") as lease:
        if lease:  # None: the report of these five minutes was written
            logger.warning("writing the report")
