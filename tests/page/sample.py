"""A store for the page. Tests advance its clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shedlock_py import InMemoryLockProvider, LockRequest
from shedlock_py.testing import FakeClock

HOSTILE = "<script>alert(1)</script>\"'&"
HOSTILE_HOLDER = 'evil"><img src=x onerror=alert(2)>'
HOSTILE_ERROR = "</title><b onmouseover=alert(3)>ValueError</b>: \u202e"
ELECTION = "reports-leader"
WEB = ("web-1:7000", "web-2:7001", "web-3:7002")


class Sample:
    """Jobs of a week: some failed, a run vanished, a job is paused, a job runs; an election."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.provider = InMemoryLockProvider(clock=self.clock, history=50, **options)

    def ran(
        self, name: str, holder: str = WEB[0], seconds: float = 1, outcome: Any = "ok", error: str | None = None
    ) -> None:
        lease = self.provider.acquire(LockRequest(name, "12h", holder=holder))
        assert lease is not None
        self.clock.advance(seconds)
        lease.outcome, lease.error = outcome, error
        self.provider.release(lease)

    def vanished(self, name: str, holder: str) -> None:
        assert self.provider.acquire(LockRequest(name, "5m", holder=holder))
        self.clock.advance("5m")

    def fill(self) -> Sample:
        for number in range(30):
            self.ran("nightly-report", WEB[number % 3], 300 + 13 * number)
            has_failed = number % 7 == 3
            error = "ConnectionError: no route to host" if has_failed else None
            self.ran("sync-orders", WEB[(number + 1) % 3], 42, "failed" if has_failed else "ok", error)
            if number == 25:
                self.vanished("sync-orders", WEB[1])
            if number == 27:
                self.ran("sync-orders", WEB[2], 5, "cancelled")
                self.ran("sync-orders", WEB[0], 60, "lost")
            self.ran(HOSTILE, HOSTILE_HOLDER, 1, "failed", HOSTILE_ERROR)
            if number < 28:
                self.ran("fetch-rates", WEB[2], 4)  # overdue since then
            self.clock.advance("5h")
        # Another program may write texts that the library would not.
        hostile = [replace(run, error=HOSTILE_ERROR) for run in reversed(self.provider.runs(HOSTILE))]
        self.provider.programs.store.execute(lambda records, _: records.runs.update({HOSTILE: hostile}), None)
        self.ran("clean-up", WEB[0], 2)
        assert self.provider.acquire(LockRequest("import", "30m", holder=WEB[2]))
        self.provider.pause("send-mails", "3h", "migration of the orders table", by="alice@ops")
        assert self.provider.acquire(LockRequest(ELECTION, "30m", holder="web-2"))
        self.clock.advance(3)
        return self
