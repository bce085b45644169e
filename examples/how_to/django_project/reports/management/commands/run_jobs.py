"""python manage.py run_jobs: start it on several hosts; each fire time runs on one of them"""

from typing import Any

from apscheduler.schedulers.blocking import BlockingScheduler
from django.core.management.base import BaseCommand

from shedlock_py import release_on_sigterm, scheduler_lock
from shedlock_py.integrations.apscheduler import ShedLockExecutor


@scheduler_lock("tick", lock_at_most_for="30s")
def tick() -> None:
    print("tick", flush=True)


class Command(BaseCommand):
    help = "Run the jobs of this project."

    def handle(self, *args: Any, **options: Any) -> None:
        scheduler = BlockingScheduler(executors={"default": ShedLockExecutor("threadpool")}, timezone="UTC")
        scheduler.add_job(tick, "cron", second="*", id="tick", misfire_grace_time=30)
        release_on_sigterm("20s")
        scheduler.start()
