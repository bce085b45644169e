"""celery --app tasks worker, on several hosts; celery --app tasks beat, on two of them."""

import logging
import os

from celery import Celery
from celery.schedules import crontab

from shedlock_py import configure, scheduler_lock

BROKER = os.environ.get("BROKER", "redis://localhost/0")

app = Celery("tasks", broker=BROKER)
app.conf.timezone = "UTC"
app.conf.beat_schedule = {
    "newsletter": {
        "task": "tasks.send_newsletter",
        "schedule": crontab(minute="*"),
        "options": {"expires": 20},  # seconds: a message that waited longer for a worker is dropped
    }
}

configure(os.environ.get("SHEDLOCK_STORE", BROKER), create_schema=True)
logger = logging.getLogger(__name__)


@app.task
@scheduler_lock("newsletter", lock_at_most_for="50s", lock_at_least_for="30s")
def send_newsletter() -> str:
    logger.warning("sending the newsletter")
    return "sent"
