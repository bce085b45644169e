"""Providers that record each request and its outcome, sent by a worker, a guard or a heartbeat."""

from __future__ import annotations

from typing import Any

from shedlock_py import AsyncLockProvider, Lease, LockProvider, LockRecord, LockRequest
from shedlock_py.durations import Duration, parse_duration
from tests.faults.history import Logbook


def _asked(request: LockRequest, keep_alive: bool) -> dict[str, Any]:
    return {
        "keep_alive": keep_alive,
        "at_most": request.lock_at_most_for.total_seconds(),
        "at_least": request.lock_at_least_for.total_seconds(),
        "fire_time": request.fire_time.timestamp() if request.fire_time else None,
    }


def _seconds(duration: Duration) -> float:
    return parse_duration(duration, "lock_at_most_for").total_seconds()


class RecordedProvider(LockProvider):
    def __init__(self, inner: LockProvider, logbook: Logbook, *, keep_alive: bool = False) -> None:
        self.inner = inner
        self._logbook = logbook
        self._keep_alive = keep_alive

    def acquire(self, request: LockRequest) -> Lease | None:
        with self._logbook.operation("acquire", request.name, **_asked(request, self._keep_alive)) as entry:
            entry.lease = self.inner.acquire(request)
            entry.outcome = "granted" if entry.lease else "skipped"
        return entry.lease

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        with self._logbook.operation("extend", lease.name, lease, at_most=_seconds(lock_at_most_for)) as entry:
            extended = self.inner.extend(lease, lock_at_most_for)
            entry.outcome = "done" if extended else "lost"
        return extended

    def release(self, lease: Lease) -> bool:
        with self._logbook.operation("release", lease.name, lease) as entry:
            was_ours = self.inner.release(lease)
            entry.outcome = "done" if was_ours else "lost"
        return was_ours

    def record(self, name: str) -> LockRecord | None:
        return self.inner.record(name)

    def records(self, prefix: str = "") -> list[LockRecord]:
        return self.inner.records(prefix)

    def force_release(self, name: str) -> bool:
        with self._logbook.operation("force_release", name) as entry:
            was_held = self.inner.force_release(name)
            entry.outcome = "done" if was_held else "free"
        return was_held

    def take_over(self, request: LockRequest) -> Lease:
        with self._logbook.operation("take_over", request.name, **_asked(request, self._keep_alive)) as entry:
            entry.lease = lease = self.inner.take_over(request)
            entry.outcome = "granted"
        return lease

    def prune(self, unused_for: Duration) -> int:
        with self._logbook.operation("prune", "") as entry:
            number = self.inner.prune(unused_for)
            entry.outcome = "done" if number else "nothing"
        return number

    def create_schema(self) -> None:
        self.inner.create_schema()


class AsyncRecordedProvider(AsyncLockProvider):
    def __init__(self, inner: AsyncLockProvider, logbook: Logbook, *, keep_alive: bool = False) -> None:
        self.inner = inner
        self._logbook = logbook
        self._keep_alive = keep_alive

    async def acquire(self, request: LockRequest) -> Lease | None:
        with self._logbook.operation("acquire", request.name, **_asked(request, self._keep_alive)) as entry:
            entry.lease = await self.inner.acquire(request)
            entry.outcome = "granted" if entry.lease else "skipped"
        return entry.lease

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        with self._logbook.operation("extend", lease.name, lease, at_most=_seconds(lock_at_most_for)) as entry:
            extended = await self.inner.extend(lease, lock_at_most_for)
            entry.outcome = "done" if extended else "lost"
        return extended

    async def release(self, lease: Lease) -> bool:
        with self._logbook.operation("release", lease.name, lease) as entry:
            was_ours = await self.inner.release(lease)
            entry.outcome = "done" if was_ours else "lost"
        return was_ours

    async def record(self, name: str) -> LockRecord | None:
        return await self.inner.record(name)

    async def records(self, prefix: str = "") -> list[LockRecord]:
        return await self.inner.records(prefix)

    async def force_release(self, name: str) -> bool:
        with self._logbook.operation("force_release", name) as entry:
            was_held = await self.inner.force_release(name)
            entry.outcome = "done" if was_held else "free"
        return was_held

    async def take_over(self, request: LockRequest) -> Lease:
        with self._logbook.operation("take_over", request.name, **_asked(request, self._keep_alive)) as entry:
            entry.lease = lease = await self.inner.take_over(request)
            entry.outcome = "granted"
        return lease

    async def prune(self, unused_for: Duration) -> int:
        with self._logbook.operation("prune", "") as entry:
            number = await self.inner.prune(unused_for)
            entry.outcome = "done" if number else "nothing"
        return number

    async def create_schema(self) -> None:
        await self.inner.create_schema()
