"""Operations on Redis: programs that choose a script and interpret its reply.

Each operation is one Lua script. It is atomic, and idempotent per claim id: if it ran but its reply was lost, the kit
or a client with retries may repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

from shedlock_py.events import logger
from shedlock_py.model.durations import in_milliseconds
from shedlock_py.model.lease import Claim, Lease
from shedlock_py.model.record import ONCE, LockRecord
from shedlock_py.model.run import Run
from shedlock_py.providers.kit import Check, Failure, StorePrograms, fire_time_too_late, refused
from shedlock_py.providers.redis.checks import server_checks
from shedlock_py.providers.redis.commands import (
    EPOCH,
    MICROSECOND,
    Call,
    Calls,
    Command,
    claim_args,
    optional_microseconds,
    run_args,
    script,
)
from shedlock_py.providers.redis.errors import classify, is_refusal
from shedlock_py.providers.redis.history import newest_of, run_script, runs_kept, to_runs
from shedlock_py.providers.redis.redis_clients import BaseClient
from shedlock_py.runtime.program import Program

_FIRE_TIME_TOO_LATE = -1
"""Returned in place of a fencing token."""


class RedisPrograms(StorePrograms):
    """The programs for the Redis server or cluster of ``client``.

    :param options: see :class:`StorePrograms`.
    """

    keeps_history: ClassVar[bool] = True
    recognises_retries: ClassVar[bool] = True

    def __init__(self, key_prefix: str, client: BaseClient, **options: Any) -> None:
        super().__init__(passwords=client.passwords, names=client.names, **options)
        self._calls = Calls(key_prefix, has_history=self.history > 0)
        self._client = client

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> Program[Command, Any, int | None]:
        operation = "take_over" if force else "acquire"
        args = (*claim_args(claim), self._calls.kept_ms, self.fire_time_tolerance // MICROSECOND)
        if force:
            former_token = None if before is None else before.fencing_token
            former_holder = before.locked_by if claim.recoveries and before is not None else ""
            args = (*args, b"" if former_token is None else former_token, former_holder.encode())
        args += run_args(claim.request, runs_kept(self))
        call = Call(script(operation), (self._calls.key(claim.request.name),), args)
        token: int = yield from run_script(call, claim.request.name, self)
        if token == _FIRE_TIME_TOO_LATE:
            raise fire_time_too_late(operation, claim.request, self.fire_time_tolerance)
        return token or None

    def set_end(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> Program[Command, Any, bool]:
        kept = runs_kept(self)
        call = self._calls.hold("extend", lease, lock_for, self.clock(), releasing=releasing, runs_kept=kept)
        return bool((yield from run_script(call, lease.name, self)))

    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> Program[Command, Any, bool]:
        call = self._calls.undo(name, locked_by, former_fire_time, runs_kept(self))
        return bool((yield from run_script(call, name, self)))

    def free(self, record: LockRecord) -> Program[Command, Any, bool]:
        return bool((yield self._calls.free(record)))

    def delete_fire_time(self, name: str, fire_time: datetime) -> Program[Command, Any, bool]:
        return bool((yield self._calls.delete_fire_time(name, fire_time)))

    def prune(self, unused_for: timedelta, prefix: str = "") -> Program[Command, Any, int]:
        deleted = 0
        args = (in_milliseconds(unused_for), optional_microseconds(ONCE))
        for keys in self._chunks((yield from self._scan(prefix))):
            deleted += sum((yield Call(script("prune"), keys, args)))
        return deleted

    def record(self, name: str) -> Program[Command, Any, LockRecord | None]:
        key = self._calls.key(name)
        now, row = yield Call(script("records"), (key,))
        try:
            return to_record(name, key, row, now) if row else None
        except ValueError as error:
            raise refused("record", name, str(error)) from error

    def records(self, prefix: str) -> Program[Command, Any, list[LockRecord]]:
        names = yield from self._scan(prefix)
        found: list[LockRecord] = []
        for keys in self._chunks(names):
            now, *rows = yield Call(script("records"), keys)
            for key, row in zip(keys, rows, strict=True):
                try:
                    found += [to_record(names[key], key, row, now)] if row else []
                except ValueError as error:
                    logger.warning("records: lock %r is left out: %s", names[key], error)
        return found

    def checks(self) -> Program[Command, Any, list[Check]]:
        return server_checks(self, self._calls, is_cluster=self._client.is_cluster)

    def runs(self, name: str, limit: int) -> Program[Command, Any, list[Run]]:
        key = self._calls.key(name)
        try:
            return to_runs(name, key, (yield Call(script("runs"), (key,))))
        except ValueError as error:
            raise refused("runs", name, str(error)) from error

    def recent_runs(self, names: Sequence[str], limit: int) -> Program[Command, Any, list[Run]]:
        by_key = {self._calls.key(name): name for name in names}
        found: list[Run] = []
        for keys in self._chunks(by_key, size=50):  # a record with its runs has some kilobytes
            for key, reply in zip(keys, (yield Call(script("recent_runs"), keys)), strict=True):
                try:
                    found += to_runs(by_key[key], key, newest_of(reply, limit))
                except ValueError as error:  # odd values of one name must not hide other names
                    logger.warning("recent_runs: lock %r is left out: %s", by_key[key], error)
        return found

    def _scan(self, prefix: str) -> Program[Command, Any, dict[bytes, str]]:
        """Return the names that start with ``prefix``, by key. Redis may return a key twice."""
        keys: list[bytes] = yield self._calls.scan(prefix)
        names = {key: self._calls.name(key) for key in sorted(keys)}
        return {key: name for key, name in names.items() if name is not None and name.startswith(prefix)}

    def _chunks(self, names: dict[bytes, str], size: int = 500) -> Iterator[tuple[bytes, ...]]:
        """Yield as many keys as one script may read. In a cluster this is one key: other keys are on other servers."""
        keys, size = tuple(names), 1 if self._client.is_cluster else size
        return (keys[start : start + size] for start in range(0, len(keys), size))

    def classify(self, error: Exception) -> Failure:
        return classify(error, has_retries=self._client.has_retries)

    def hint(self, error: Exception) -> str | None:
        if isinstance(error, RuntimeError) and "loop" in str(error):
            return (
                "a client of redis.asyncio belongs to the event loop that used it first: make another one for this loop"
            )
        is_foreign = "WRONGTYPE" in str(error)
        return "another program uses this key: choose another key_prefix" if is_foreign else None

    def is_refusal(self, error: Exception, failure: Failure) -> bool:
        return is_refusal(error)


def to_record(name: str, key: bytes, row: Sequence[bytes | None], now: int) -> LockRecord:
    """Parse a row of ``records.lua``.

    :raises ValueError: another program has changed the record. The message says how to fix it.
    """
    locked_by, *values, released_token, freed_token = row
    numbers: list[int | None] = []
    try:
        for field, value in zip(("locked_at", "lock_until", "fencing_token", "last_fire_time"), values, strict=True):
            limit = 10**18 if field == "last_fire_time" else 2**53  # the same limits as in reading.lua
            if value is not None and (not re.fullmatch(rb"-?[0-9]+", value) or abs(int(value)) >= limit):
                raise ValueError(f"{field}: {value[:40].decode(errors='replace')!r}")
            numbers.append(None if value is None else int(value))
        locked_at, lock_until, fencing_token, last_fire_time = numbers
        return LockRecord(
            name=name,
            locked_by=(locked_by or b"").decode(errors="replace"),
            locked_at=EPOCH + (locked_at or 0) * MICROSECOND,
            lock_until=EPOCH + (lock_until or 0) * MICROSECOND,
            fencing_token=fencing_token,
            last_fire_time=None if last_fire_time is None else EPOCH + last_fire_time * MICROSECOND,
            read_at=EPOCH + now * MICROSECOND,
            is_released=values[2] in (released_token, freed_token) if values[2] else None,
        )
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"a field of this lock record is not a number of microseconds or a token ({error}). Read it with "
            f"HGETALL {key.decode()}, and delete the key if the lock is not held."
        ) from error
