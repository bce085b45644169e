"""Three workers with a scheduler each: gunicorn app:app"""

import os

from apscheduler.schedulers.background import BackgroundScheduler
from flask import Flask

from shedlock_py import scheduler_lock
from shedlock_py.integrations.apscheduler import ShedLockExecutor
from shedlock_py.integrations.flask import ShedLock

scheduler = BackgroundScheduler(
    executors={"default": ShedLockExecutor("threadpool")},
    job_defaults={"misfire_grace_time": 30},
    timezone="UTC",  # DST repeats or skips an hour
)


@scheduler.scheduled_job("cron", second="*", id="tick")
@scheduler_lock("tick", lock_at_most_for="30s")
def tick() -> None:
    print(f"tick in process {os.getpid()}", flush=True)


app = Flask(__name__)
shedlock = ShedLock(os.environ.get("DATABASE_URL", "sqlite:///app.db"), start=[scheduler], drain="20s")
shedlock.init_app(app)
