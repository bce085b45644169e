"""Three workers with a scheduler each: gunicorn --workers 3 app:app"""

import logging
import os

from apscheduler.events import EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.schedulers.background import BackgroundScheduler
from flask import Flask
from sqlalchemy import create_engine, text

from shedlock_py import provider_from_url, scheduler_lock
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, JobSkippedEvent, ShedLockExecutor
from shedlock_py.integrations.flask import ShedLock

logging.basicConfig(format="%(process)d %(message)s")
logger = logging.getLogger("app")
logger.setLevel(logging.INFO)

DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite:///app.db")
engine = create_engine(DATABASE_URL)
provider = provider_from_url(DATABASE_URL)  # from a URL, because it survives a fork
scheduler = BackgroundScheduler(
    executors={"default": ShedLockExecutor("threadpool")},
    job_defaults={"misfire_grace_time": 30},
    timezone="UTC",  # DST repeats or skips an hour
)


@scheduler.scheduled_job("cron", second="*", id="tick")
@scheduler_lock("tick", lock_at_most_for="30s")
def tick() -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO tick (worker) VALUES (:worker)"), {"worker": os.getpid()})


def log_run(event: JobExecutionEvent) -> None:
    what = f"skipped ({event.reason})" if isinstance(event, JobSkippedEvent) else "ran"
    logger.info("%s %s of %s", what, event.job_id, event.scheduled_run_time.isoformat())


def start_worker() -> None:
    """In each worker, after the fork: see gunicorn.conf.py."""
    engine.dispose(close=False)  # with --preload, connections of the parent process must not be used here
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS tick (worker INTEGER)"))
    scheduler.add_listener(log_run, EVENT_JOB_EXECUTED | EVENT_JOB_SKIPPED)
    shedlock.start()


app = Flask(__name__)
shedlock = ShedLock(provider, start=[scheduler], drain="20s")
shedlock.init_app(app)


@app.get("/ticks")
def ticks() -> str:
    with engine.connect() as connection:
        return str(connection.scalar(text("SELECT count(*) FROM tick")))
