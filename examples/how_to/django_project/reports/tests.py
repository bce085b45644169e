"""python manage.py test"""

from io import StringIO

from django.core.management import call_command
from django.test import TestCase

from shedlock_py import InMemoryLockProvider, LockRequest, configure


class NightlyReportTest(TestCase):
    def setUp(self) -> None:
        self.provider = InMemoryLockProvider()
        self.enterContext(configure(self.provider))

    def nightly_report(self) -> str:
        output = StringIO()
        call_command("nightly_report", stdout=output)
        return output.getvalue()

    def test_it_is_written(self) -> None:
        assert self.nightly_report() == "written: 42 pages\n"

    def test_another_host_writes_it(self) -> None:
        self.provider.acquire(LockRequest("nightly-report", lock_at_most_for="30m"))
        assert self.nightly_report() == "skipped: nightly-report (held)\n"
