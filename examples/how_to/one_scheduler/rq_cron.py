"""shedlock lead rq-cron -- rq cron rq_cron.py --url redis://localhost/0, on two hosts."""

from rq import cron


def report() -> None: ...


cron.register(report, queue_name="default", cron="*/5 * * * *")
