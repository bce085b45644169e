"""python manage.py scheduler: start it on several hosts; one of them leads"""

import threading
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler
from django.core.management.base import BaseCommand
from django_apscheduler.jobstores import DjangoJobStore

from shedlock_py import LeaderElector, release_on_sigterm
from shedlock_py.integrations.apscheduler import lead
from shedlock_py.integrations.django import lock_provider


def tick() -> None:
    print("tick", flush=True)


class Command(BaseCommand):
    help = "Run the jobs of the job store, on one host at a time."

    def handle(self, *args: Any, **options: Any) -> None:
        scheduler = BackgroundScheduler(
            jobstores={"default": DjangoJobStore()},
            job_defaults={"misfire_grace_time": None},  # what came due while nobody led still runs
            timezone="UTC",  # DST repeats or skips an hour
        )
        scheduler.add_job(tick, "cron", second="*", id="tick", replace_existing=True)
        release_on_sigterm("20s")
        with lead(scheduler, LeaderElector(lock_provider(), "scheduler")):
            self.stdout.write("started")
            threading.Event().wait()
