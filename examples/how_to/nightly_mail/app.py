"""One of N replicas: python app.py"""

import logging
import os
import threading

from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import create_engine, text

from shedlock_py import assert_locked, configure, is_shutting_down, release_on_sigterm, scheduler_lock
from shedlock_py.integrations.apscheduler import ShedLockExecutor, drain

logging.basicConfig(level=logging.WARNING)
DATABASE_URL = os.environ["DATABASE_URL"]  # postgresql+psycopg://user:secret@host/db
UNSENT = text("SELECT id FROM mail WHERE sent_at IS NULL ORDER BY id")
MARK = text("UPDATE mail SET sent_at = now() WHERE id = :id AND sent_at IS NULL RETURNING address")

engine = create_engine(DATABASE_URL, pool_pre_ping=True)
scheduler = BackgroundScheduler(executors={"default": ShedLockExecutor()}, timezone="UTC")


class MailError(Exception):
    """The mail service has refused a mail."""


def send(address: str, key: str) -> None:
    print(f"mail {key} to {address}", flush=True)  # your mail service


@scheduler.scheduled_job("cron", hour="2-4", minute="*/20", id="nightly-mail", misfire_grace_time=1200)
@scheduler_lock("nightly-mail", lock_at_most_for="1m", lock_at_least_for="30s", keep_alive="1h")
def nightly_mail() -> None:
    with engine.connect() as connection:
        unsent = connection.scalars(UNSENT).all()
    for number in unsent:
        if is_shutting_down():
            return  # the next fire time goes on, on another replica
        assert_locked("nightly-mail")
        try:
            with engine.begin() as connection:
                address = connection.scalar(MARK, {"id": number})
                if address is not None:  # None: it was sent meanwhile
                    send(address, key=f"mail-{number}")
        except MailError:
            logging.exception("mail %s was not sent", number)


def main() -> None:
    configure(DATABASE_URL, create_schema=True)
    release_on_sigterm("20s")
    scheduler.start()
    try:
        threading.Event().wait()
    finally:
        drain(scheduler, "20s")
        scheduler.shutdown(wait=False)


if __name__ == "__main__":
    main()
