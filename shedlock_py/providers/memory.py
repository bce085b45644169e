"""A store in the memory of one process, as strict as the real ones: for tests, and for apps of one process."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from shedlock_py._clock import monotonic
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.rules import Claim, Clock, Lease, LockRecord, LockRequest, validate_name

_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Record:
    """A lock record. Moments are microseconds since 1970, of the store's clock."""

    __slots__ = ("fencing_token", "last_fire_time", "lock_until", "locked_at", "locked_by")

    def __init__(self, claim: Claim, now: int, fencing_token: int, last_fire_time: datetime | None) -> None:
        self.locked_by = claim.locked_by
        self.locked_at = now
        self.lock_until = now + claim.request.lock_at_most_for // _MICROSECOND
        self.fencing_token = fencing_token
        self.last_fire_time = last_fire_time


class _MemoryStore:
    """The records of one store, and the operations on them, one at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_at = (datetime.now(UTC) - _EPOCH) // _MICROSECOND - round(clock() * 1_000_000)
        self._records: dict[str, _Record] = {}
        self._last_token = 0  # outlives deleted records
        self._mutex = threading.Lock()

    def _now(self) -> int:
        return self._started_at + round(self._clock() * 1_000_000)

    def acquire(self, request: LockRequest) -> Lease | None:
        claim = Claim(request, self._clock)
        with self._mutex:
            now = self._now()
            record = self._records.get(request.name)
            if record is not None:
                if record.lock_until > now:
                    return None
                if request.fire_time and record.last_fire_time and record.last_fire_time >= request.fire_time:
                    return None
            return self._grant(claim, record, now)

    def take_over(self, request: LockRequest) -> Lease:
        claim = Claim(request, self._clock)
        with self._mutex:
            return self._grant(claim, self._records.get(request.name), self._now())

    def _grant(self, claim: Claim, before: _Record | None, now: int) -> Lease:
        fire_time = claim.request.fire_time
        if before and before.last_fire_time and (fire_time is None or fire_time < before.last_fire_time):
            fire_time = before.last_fire_time  # the newest that was granted
        self._last_token = max(self._last_token + 1, now)
        self._records[claim.request.name] = _Record(claim, now, self._last_token, fire_time)
        return claim.granted(self._last_token)

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        extension = lease.begin_extension(lock_at_most_for)
        if not self._hold_for(lease, extension.lock_for):
            lease.lose()
            return None
        return extension.granted()

    def release(self, lease: Lease) -> bool:
        was_ours = self._hold_for(lease, lease.begin_release())
        if was_ours:
            lease.end()
        else:
            lease.lose()
        return was_ours

    def _hold_for(self, lease: Lease, lock_for: timedelta) -> bool:
        """Let the lock end ``lock_for`` from now, if exactly this acquisition holds it."""
        with self._mutex:
            now = self._now()
            record = self._records.get(lease.name)
            if lease.has_ended() or not record or record.lock_until <= now:
                return False
            if record.locked_by != lease.locked_by or record.fencing_token != lease.fencing_token:
                return False
            record.lock_until = now + lock_for // _MICROSECOND
            return True

    def records(self, prefix: str) -> list[LockRecord]:
        with self._mutex:
            return [self._shown(name) for name in sorted(self._records) if name.startswith(prefix)]

    def record(self, name: str) -> LockRecord | None:
        with self._mutex:
            return self._shown(name) if validate_name(name) in self._records else None

    def _shown(self, name: str) -> LockRecord:
        record = self._records[name]
        return LockRecord(
            name=name,
            locked_by=record.locked_by,
            locked_at=_moment(record.locked_at),
            lock_until=_moment(record.lock_until),
            fencing_token=record.fencing_token,
            last_fire_time=record.last_fire_time,
            read_at=_moment(self._now()),
        )

    def force_release(self, name: str) -> bool:
        with self._mutex:
            now = self._now()
            record = self._records.get(validate_name(name))
            if not record or record.lock_until <= now:
                return False
            record.lock_until = now
            return True

    def prune(self, unused_for: Duration) -> int:
        unused = parse_duration(unused_for, "unused_for", zero=True)
        with self._mutex:
            limit = self._now() - unused // _MICROSECOND
            old = [name for name, record in self._records.items() if record.lock_until <= limit]
            for name in old:
                del self._records[name]
            return len(old)


def _moment(microseconds: int) -> datetime:
    return _EPOCH + microseconds * _MICROSECOND


class InMemoryLockProvider(LockProvider):
    """A :class:`LockProvider` for one process. ``clock`` (monotonic seconds) lets tests travel in time."""

    def __init__(self, *, clock: Clock = monotonic) -> None:
        self._store = _MemoryStore(clock)

    def acquire(self, request: LockRequest) -> Lease | None:
        return self._store.acquire(request)

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return self._store.extend(lease, lock_at_most_for)

    def release(self, lease: Lease) -> bool:
        return self._store.release(lease)

    def record(self, name: str) -> LockRecord | None:
        return self._store.record(name)

    def records(self, prefix: str = "") -> list[LockRecord]:
        return self._store.records(prefix)

    def force_release(self, name: str) -> bool:
        return self._store.force_release(name)

    def take_over(self, request: LockRequest) -> Lease:
        return self._store.take_over(request)

    def prune(self, unused_for: Duration) -> int:
        return self._store.prune(unused_for)

    def create_schema(self) -> None:
        """Nothing to create."""


class AsyncInMemoryLockProvider(AsyncLockProvider):
    """:class:`InMemoryLockProvider` for asyncio. ``shared_with`` makes both see the same locks."""

    def __init__(self, shared_with: InMemoryLockProvider | None = None, *, clock: Clock = monotonic) -> None:
        self._store = shared_with._store if shared_with is not None else _MemoryStore(clock)

    async def acquire(self, request: LockRequest) -> Lease | None:
        return self._store.acquire(request)

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return self._store.extend(lease, lock_at_most_for)

    async def release(self, lease: Lease) -> bool:
        return self._store.release(lease)

    async def record(self, name: str) -> LockRecord | None:
        return self._store.record(name)

    async def records(self, prefix: str = "") -> list[LockRecord]:
        return self._store.records(prefix)

    async def force_release(self, name: str) -> bool:
        return self._store.force_release(name)

    async def take_over(self, request: LockRequest) -> Lease:
        return self._store.take_over(request)

    async def prune(self, unused_for: Duration) -> int:
        return self._store.prune(unused_for)

    async def create_schema(self) -> None:
        """Nothing to create."""
