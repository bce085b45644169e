"""shedlock lead beat -- celery --app celery_app beat --scheduler celery.beat:Scheduler, on two hosts."""

import os

from celery import Celery
from celery.schedules import crontab

app = Celery("celery_app", broker=os.environ.get("BROKER", "redis://localhost/0"))
app.conf.timezone = "UTC"
app.conf.beat_schedule = {"report": {"task": "celery_app.report", "schedule": crontab(minute="*/5")}}


@app.task
def report() -> None: ...
