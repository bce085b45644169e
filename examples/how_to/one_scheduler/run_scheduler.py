"""shedlock lead django -- python manage.py run_scheduler, on two hosts."""

from typing import Any

from apscheduler.schedulers.blocking import BlockingScheduler
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Run the jobs of this project."

    def handle(self, *args: Any, **options: Any) -> None:
        scheduler = BlockingScheduler(timezone="UTC")  # DST repeats or skips an hour
        scheduler.add_job(self.report, "cron", minute="*/5")
        scheduler.start()

    def report(self) -> None:
        self.stdout.write("report")
