"""A store in the memory of one process, as strict as the real ones: for tests, and for apps of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from shedlock_py._clock import monotonic
from shedlock_py._program import Program
from shedlock_py.durations import Duration
from shedlock_py.errors import ProviderError
from shedlock_py.lease import Claim, Clock, Lease
from shedlock_py.providers.kit import (
    AsyncProgramProvider,
    Failure,
    ProgramProvider,
    StorePrograms,
    fire_time_too_late,
    parse_tolerance,
)
from shedlock_py.record import LockRecord

_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Command = Callable[[int], Any]
"""A step that is carried out alone. It gets the store's time, in microseconds since 1970."""


class _Record:
    """A lock record. Moments are microseconds since 1970, of the store's clock."""

    __slots__ = ("fencing_token", "last_fire_time", "lock_until", "locked_at", "locked_by")

    def __init__(self, claim: Claim, now: int, fencing_token: int, last_fire_time: datetime | None) -> None:
        self.locked_by = claim.locked_by
        self.locked_at = now
        self.lock_until = now + claim.request.lock_at_most_for // _MICROSECOND
        self.fencing_token = fencing_token
        self.last_fire_time = last_fire_time

    def shown(self, name: str, now: int) -> LockRecord:
        return LockRecord(
            name=name,
            locked_by=self.locked_by,
            locked_at=_moment(self.locked_at),
            lock_until=_moment(self.lock_until),
            fencing_token=self.fencing_token,
            last_fire_time=self.last_fire_time,
            read_at=_moment(now),
        )


class _Store:
    """The records of one store, and its clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._started_at = (datetime.now(UTC) - _EPOCH) // _MICROSECOND - round(clock() * 1_000_000)
        self.records: dict[str, _Record] = {}
        self.last_token = 0  # outlives deleted records
        self._mutex = threading.Lock()

    def execute(self, command: Command, _timeout: float | None) -> Any:
        with self._mutex:
            return command(self._started_at + round(self.clock() * 1_000_000))


class _AsyncStore:
    """The same store for asyncio: nothing is waited for."""

    def __init__(self, store: _Store) -> None:
        self.store = store

    async def execute(self, command: Command, timeout: float | None) -> Any:  # noqa: ASYNC109 (of the kit's client)
        return self.store.execute(command, timeout)


class MemoryPrograms(StorePrograms):
    """Each operation is one step on a dictionary."""

    def __init__(self, store: _Store, fire_time_tolerance: timedelta) -> None:
        super().__init__(clock=store.clock, fire_time_tolerance=fire_time_tolerance)
        self._store = store

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> Program[Command, Any, int | None]:
        request, store = claim.request, self._store

        def grant(now: int) -> int | None:
            record = store.records.get(request.name)
            fire_time = request.fire_time
            newest = record.last_fire_time if record else None
            if fire_time and fire_time > _moment(now) + self.fire_time_tolerance:
                raise fire_time_too_late("take_over" if force else "acquire", request, self.fire_time_tolerance)
            if force:
                if (record.fencing_token if record else None) != (before.fencing_token if before else None):
                    return None
            elif record and (record.lock_until > now or (fire_time and newest and newest >= fire_time)):
                return None
            if newest and (fire_time is None or fire_time < newest):
                fire_time = newest
            store.last_token = max(store.last_token + 1, now)
            store.records[request.name] = _Record(claim, now, store.last_token, fire_time)
            return store.last_token

        token: int | None = yield grant
        return token

    def hold(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> Program[Command, Any, bool]:
        def set_end(now: int) -> bool:
            record = self._store.records.get(lease.name)
            if record is None or record.lock_until <= now:
                return False
            if record.locked_by != lease.locked_by or record.fencing_token != lease.fencing_token:
                return False
            record.lock_until = now + lock_for // _MICROSECOND
            return True

        was_ours: bool = yield set_end
        return was_ours

    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> Program[Command, Any, bool]:
        def undo(now: int) -> bool:
            record = self._store.records.get(name)
            if record is None or record.locked_by != locked_by:
                return False
            record.lock_until = min(record.lock_until, now)
            if former_fire_time and record.last_fire_time and record.last_fire_time > former_fire_time:
                record.last_fire_time = former_fire_time
            return True

        was_ours: bool = yield undo
        return was_ours

    def record(self, name: str) -> Program[Command, Any, LockRecord | None]:
        def read(now: int) -> LockRecord | None:
            record = self._store.records.get(name)
            return record.shown(name, now) if record else None

        record: LockRecord | None = yield read
        return record

    def records(self, prefix: str) -> Program[Command, Any, list[LockRecord]]:
        def read(now: int) -> list[LockRecord]:
            return [record.shown(name, now) for name, record in self._store.records.items()]

        records: list[LockRecord] = yield read
        return records

    def force_release(self, name: str) -> Program[Command, Any, bool]:
        def release(now: int) -> bool:
            record = self._store.records.get(name)
            if record is None or record.lock_until <= now:
                return False
            record.lock_until = now
            return True

        was_held: bool = yield release
        return was_held

    def forget_fire_time(self, name: str) -> Program[Command, Any, bool]:
        def forget(_now: int) -> bool:
            record = self._store.records.get(name)
            if record is None or record.last_fire_time is None:
                return False
            record.last_fire_time = None
            return True

        was_known: bool = yield forget
        return was_known

    def prune(self, unused_for: timedelta) -> Program[Command, Any, int]:
        def delete(now: int) -> int:
            limit = now - unused_for // _MICROSECOND
            records = self._store.records
            old = [name for name, record in records.items() if record.lock_until <= limit]
            for name in old:
                del records[name]
            return len(old)

        deleted: int = yield delete
        return deleted

    def classify(self, error: Exception) -> Failure:
        return Failure.NOT_A_STORE_ERROR

    def explain(self, error: Exception, failure: Failure, operation: str, lock_name: str | None) -> ProviderError:
        return ProviderError(str(error), operation=operation, lock_name=lock_name)  # never: it has no errors of its own


def _moment(microseconds: int) -> datetime:
    return _EPOCH + microseconds * _MICROSECOND


class InMemoryLockProvider(ProgramProvider):
    """A :class:`LockProvider` for one process.

    :param clock: monotonic seconds; a :class:`FakeClock` lets tests travel in time.
    :param fire_time_tolerance: how far a fire time may lie in the future.
    """

    def __init__(self, *, clock: Clock = monotonic, fire_time_tolerance: Duration | None = None) -> None:
        self._store = _Store(clock)
        super().__init__(MemoryPrograms(self._store, parse_tolerance(fire_time_tolerance, None)), self._store)


class AsyncInMemoryLockProvider(AsyncProgramProvider):
    """:class:`InMemoryLockProvider` for asyncio. ``shared_with`` makes both see the same locks."""

    def __init__(
        self,
        shared_with: InMemoryLockProvider | None = None,
        *,
        clock: Clock = monotonic,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        store = shared_with._store if shared_with is not None else _Store(clock)
        super().__init__(MemoryPrograms(store, parse_tolerance(fire_time_tolerance, None)), _AsyncStore(store))
