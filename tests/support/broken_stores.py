"""Providers with faults, for ``shedlock doctor --torture``. Locks are in the JSON file that a variable names.

The racers import this module by its reference, "tests.support.broken_stores:Sound".
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from examples.providers.json_file import JsonFileLockProvider
from shedlock_py import Lease, LockRecord, LockRequest, ProviderUnreachable
from shedlock_py.model.durations import Duration
from shedlock_py.runtime.process import monotonic

FILE = "SHEDLOCK_TEST_FILE"


class Sound(JsonFileLockProvider):
    def __init__(self) -> None:
        super().__init__(os.environ[FILE])


class GrantsToTwo(Sound):
    """A front end with a cache: it does not see that the lock was taken a moment ago."""

    def acquire(self, request: LockRequest) -> Lease | None:
        return super().acquire(request) or (self.take_over(request) if random.random() < 0.2 else None)


class IgnoresFireTimes(Sound):
    def acquire(self, request: LockRequest) -> Lease | None:
        return super().acquire(LockRequest(request.name, request.lock_at_most_for, holder=request.holder))


class ExtendsStaleLeases(Sound):
    """It compares the name only, and so gives the lock back to a former holder."""

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        extended = super().extend(lease, lock_at_most_for)
        if extended is None:
            self.take_over(LockRequest(lease.name, lock_at_most_for, holder=lease.holder))
        return lease


class ReleasesByName(Sound):
    def release(self, lease: Lease) -> bool:
        return super().release(lease) or self.force_release(lease.name)


class GivesSmallTokens(Sound):
    """A counter for each front end."""

    _last = 0

    def acquire(self, request: LockRequest) -> Lease | None:
        lease = super().acquire(request)
        if lease is not None:
            self._last += 1
            lease.fencing_token = self._last
        return lease


class ExpiresEarly(Sound):
    """The time to live is half as long as requested."""

    def acquire(self, request: LockRequest) -> Lease | None:
        sent, half = monotonic(), request.lock_at_most_for / 2
        lease = super().acquire(LockRequest(request.name, half, 0, request.holder, request.fire_time))
        return lease and Lease(request, lease.claim_id, lease.fencing_token, monotonic, sent)


class NeverExpires(Sound):
    def acquire(self, request: LockRequest) -> Lease | None:
        long = LockRequest(request.name, "1h", 0, request.holder, request.fire_time)
        return super().acquire(long)


class GrantsNothing(Sound):
    def acquire(self, request: LockRequest) -> Lease | None:
        return None if request.name.endswith("rounds") else super().acquire(request)


class ForgetsLeases(Sound):
    """A cache that evicts leases when it is full."""

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        if random.random() < 0.2:
            self.force_release(lease.name)
        return super().extend(lease, lock_at_most_for)


class ReadsFromAReplica(Sound):
    """The replica lags behind."""

    _seen: LockRecord | None = None

    def record(self, name: str) -> LockRecord | None:
        found = super().record(name)
        if found is None or not name.endswith("rounds"):
            return found
        shown, self._seen = self._seen, found
        return shown or found


class WithWrongClock(Sound):
    def ahead(self) -> float:
        raise NotImplementedError

    def record(self, name: str) -> LockRecord | None:
        found = super().record(name)
        return found and replace(found, read_at=found.read_at + timedelta(seconds=self.ahead()))


class ClockGoesBack(WithWrongClock):
    """An hour's worth of NTP at once, five times a second."""

    def ahead(self) -> float:
        return -(monotonic() * 5 // 1) * 0.5


class FrontEndsDisagree(WithWrongClock):
    """Each process has a front end of its own. The clock of the first front end is 3 s behind."""

    _ahead: float | None = None

    def ahead(self) -> float:
        if self._ahead is None:
            self._ahead = 0.0
            with suppress(FileExistsError):
                Path(f"{os.environ[FILE]}.behind").touch(exist_ok=False)
                self._ahead = -3.0
        return self._ahead


class KeepsTrust(Sound):
    """The trust in a lease does not end, as if the clock stood still with the process."""

    def acquire(self, request: LockRequest) -> Lease | None:
        lease = super().acquire(request)
        return lease and Lease(request, lease.claim_id, lease.fencing_token, lambda: 0.0, 0.0)


class Fails(Sound):
    """An outage, which begins after the first lock."""

    def acquire(self, request: LockRequest) -> Lease | None:
        if request.name.endswith("clock"):
            return super().acquire(request)
        raise ProviderUnreachable("no reply", operation="acquire")


class FailsAtTimes(Sound):
    def acquire(self, request: LockRequest) -> Lease | None:
        if random.random() < 0.02:
            raise ProviderUnreachable("no reply", operation="acquire")
        return super().acquire(request)
