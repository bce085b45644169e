"""shedlock lead taskiq -- taskiq scheduler --skip-first-run taskiq_app:scheduler, on two hosts."""

import os

from taskiq import TaskiqScheduler
from taskiq.schedule_sources import LabelScheduleSource
from taskiq_redis import ListQueueBroker

broker = ListQueueBroker(os.environ.get("BROKER", "redis://localhost/0"))
scheduler = TaskiqScheduler(broker, sources=[LabelScheduleSource(broker)])


@broker.task(schedule=[{"cron": "*/5 * * * *"}])
async def report() -> None: ...
