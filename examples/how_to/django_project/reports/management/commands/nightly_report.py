"""python manage.py nightly_report"""

from typing import Any

from django.core.management.base import BaseCommand

from shedlock_py import scheduler_lock


@scheduler_lock("nightly-report", lock_at_most_for="30m", lock_at_least_for="1m")
def write_report() -> str:
    return "42 pages"


class Command(BaseCommand):
    help = "Write the nightly report, on one host."

    def handle(self, *args: Any, **options: Any) -> None:
        result = write_report.attempt()
        if not result:
            self.stdout.write(f"skipped: {result.lock_name} ({result.reason})")
        else:
            self.stdout.write(f"written: {result.value}")
