"""The operations on Redis: programs that choose the script to run and decide what the replies mean.

Each operation is one Lua script, atomic and idempotent per claim id: one that ran but whose reply was lost may be
repeated, by the kit or by a client that retries by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NamedTuple

from shedlock_py._process import monotonic
from shedlock_py._program import Program
from shedlock_py.durations import in_milliseconds
from shedlock_py.errors import ProviderError
from shedlock_py.events import logger
from shedlock_py.lease import Claim, Clock, Lease
from shedlock_py.providers.kit import (
    DEFAULT_FIRE_TIME_TOLERANCE,
    Failure,
    StorePrograms,
    fire_time_too_late,
    refused,
    unreachable,
)
from shedlock_py.providers.redis.errors import classify, is_refusal, reason
from shedlock_py.providers.redis.scripts import Script, script
from shedlock_py.record import LockRecord
from shedlock_py.request import validate_prefix

KEPT = timedelta(days=30)
"""How long a lock record outlives its lease. Fencing tokens grow without it: they follow the server's clock."""


class Call(NamedTuple):
    """A command: run one script. The reply is what it returns, texts as bytes."""

    script: Script
    keys: tuple[bytes, ...]
    args: tuple[bytes | int, ...] = ()


class Scan(NamedTuple):
    """A command: find the keys that match a glob pattern. The reply is a list of keys."""

    pattern: bytes


Command = Call | Scan
Redact = Callable[[str], str]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
KEPT_MS = in_milliseconds(KEPT)
_FIRE_TIME_TOO_LATE = -1
"""In the place of a fencing token."""


class Keys:
    """The keys of the lock records: ``{key_prefix}:{{name}}``, the name in braces so that it alone picks the slot."""

    def __init__(self, key_prefix: str) -> None:
        self._start = f"{validate_prefix(key_prefix, 'key_prefix')}:{{".encode()

    def of(self, name: str) -> bytes:
        return self._start + name.encode() + b"}"

    def pattern(self, prefix: str) -> bytes:
        """A glob that the keys of names with ``prefix`` match, and perhaps others."""
        literal = self._start + validate_prefix(prefix).encode()
        return b"".join(b"\\" + bytes([byte]) if byte in b"*?[]^\\" else bytes([byte]) for byte in literal) + b"*}"

    def name(self, key: bytes) -> str | None:
        """The lock name of ``key``; None if another program uses the key."""
        if not key.startswith(self._start) or not key.endswith(b"}"):
            return None
        try:
            return key[len(self._start) : -1].decode()
        except UnicodeDecodeError:
            return None


class RedisPrograms(StorePrograms):
    """The programs for one Redis server or cluster.

    :param redact: takes the password out of a driver's message.
    :param keys_per_call: how many keys one script may read; one in a cluster, where they lie on different servers.
    :param has_retries: the client retries by itself, so a failure to connect may follow a script that ran.
    :param clock: the holder's monotonic clock.
    """

    recognises_retries: ClassVar[bool] = True

    def __init__(
        self,
        key_prefix: str,
        redact: Redact,
        *,
        keys_per_call: int = 500,
        has_retries: bool = False,
        clock: Clock = monotonic,
        timeout: float | None = None,
        fire_time_tolerance: timedelta = DEFAULT_FIRE_TIME_TOLERANCE,
    ) -> None:
        super().__init__(clock=clock, timeout=timeout, fire_time_tolerance=fire_time_tolerance)
        self._keys = Keys(key_prefix)
        self._redact = redact
        self._keys_per_call = keys_per_call
        self._has_retries = has_retries

    def is_write(self, command: Command) -> bool:
        return isinstance(command, Call) and command.script.name in ("acquire", "take_over")

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> Program[Command, Any, int | None]:
        operation = "take_over" if force else "acquire"
        args = (*claim_args(claim), KEPT_MS, self.fire_time_tolerance // MICROSECOND)
        if force:
            former_token = None if before is None else before.fencing_token
            args = (*args, b"" if former_token is None else former_token)
        token: int = yield Call(script(operation), (self._keys.of(claim.request.name),), args)
        if token == _FIRE_TIME_TOO_LATE:
            raise fire_time_too_late(operation, claim.request, self.fire_time_tolerance)
        return token or None

    def hold(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> Program[Command, Any, bool]:
        key = self._keys.of(lease.name)
        if releasing:
            reply = yield release_call(key, lease, lock_for)
        else:
            reply = yield extend_call("extend", key, lease, lock_for, self.clock())
        return bool(reply)

    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> Program[Command, Any, bool]:
        args = (locked_by.encode(), optional_microseconds(former_fire_time), KEPT_MS)
        return bool((yield Call(script("undo"), (self._keys.of(name),), args)))

    def force_release(self, name: str) -> Program[Command, Any, bool]:
        return bool((yield Call(script("force_release"), (self._keys.of(name),), (KEPT_MS,))))

    def forget_fire_time(self, name: str) -> Program[Command, Any, bool]:
        return bool((yield Call(script("forget_fire_time"), (self._keys.of(name),))))

    def prune(self, unused_for: timedelta) -> Program[Command, Any, int]:
        keys = yield from self._scan("")
        deleted = 0
        for some in self._chunks(sorted(keys)):
            deleted += sum((yield Call(script("prune"), some, (in_milliseconds(unused_for),))))
        return deleted

    def record(self, name: str) -> Program[Command, Any, LockRecord | None]:
        key = self._keys.of(name)
        now, row = yield Call(script("records"), (key,))
        if not row:
            return None
        try:
            return to_record(name, row, now)
        except (ValueError, OverflowError) as error:
            raise refused("record", name, _odd(key, error)) from error

    def records(self, prefix: str) -> Program[Command, Any, list[LockRecord]]:
        keys = yield from self._scan(prefix)
        found: list[LockRecord] = []
        for some in self._chunks(sorted(keys)):
            now, *rows = yield Call(script("records"), some)
            for key, row in zip(some, rows, strict=True):
                try:
                    found += [to_record(keys[key], row, now)] if row else []
                except (ValueError, OverflowError) as error:
                    logger.warning("records: lock %r is left out: %s", keys[key], _odd(key, error))
        return found

    def _scan(self, prefix: str) -> Program[Command, Any, dict[bytes, str]]:
        """The names, by key, that start with ``prefix``. A scan may find a key twice."""
        keys: list[bytes] = yield Scan(self._keys.pattern(prefix))
        names = {key: self._keys.name(key) for key in keys}
        return {key: name for key, name in names.items() if name is not None and name.startswith(prefix)}

    def _chunks(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, ...]]:
        for start in range(0, len(keys), self._keys_per_call):
            yield tuple(keys[start : start + self._keys_per_call])

    def classify(self, error: Exception) -> Failure:
        return classify(error, has_retries=self._has_retries)

    def reason(self, error: Exception) -> str:
        return self._redact(reason(error))

    def hint(self, error: Exception) -> str | None:
        is_foreign = "WRONGTYPE" in str(error)
        return "another program uses this key: choose another key_prefix" if is_foreign else None

    def explain(self, error: Exception, failure: Failure, operation: str, lock_name: str | None) -> ProviderError:
        make = refused if is_refusal(error) else unreachable
        return make(operation, lock_name, self.reason(error), hint=self.hint(error))


def claim_args(claim: Claim) -> tuple[bytes | int, ...]:
    """``locked_by``, the length of the lease in ms, and the fire time in us, or nothing."""
    request = claim.request
    return claim.locked_by.encode(), in_milliseconds(request.lock_at_most_for), optional_microseconds(request.fire_time)


def in_microseconds(moment: datetime) -> int:
    """Since 1970, as the scripts count."""
    return (moment - _EPOCH) // MICROSECOND


def optional_microseconds(moment: datetime | None) -> bytes | int:
    return b"" if moment is None else in_microseconds(moment)


def release_call(key: bytes, lease: Lease, lock_for: timedelta) -> Call:
    """The call that lets exactly ``lease`` end ``lock_for`` from now."""
    return Call(script("release"), (key,), (lease.locked_by.encode(), in_milliseconds(lock_for), KEPT_MS))


def extend_call(operation: str, key: bytes, lease: Lease, lock_for: timedelta, now: float) -> Call:
    """The same while it lasts. ``now`` is the holder's clock: what a client repeats may come after a later one."""
    args = (
        lease.locked_by.encode(),
        in_milliseconds(lock_for),
        KEPT_MS,
        lease.fencing_token or 0,
        int(now * 1_000_000),
    )
    return Call(script(operation), (key,), args)


def to_record(name: str, row: Sequence[bytes | None], now: int) -> LockRecord:
    """A row of ``records.lua``.

    :raises ValueError: a field is not a number, or none that the scripts have written.
    :raises OverflowError: a number is not a moment that Python knows.
    """
    locked_by, locked_at, lock_until, fencing_token, last_fire_time = row
    newest = _number(last_fire_time, "last_fire_time", 18)
    return LockRecord(
        name=name,
        locked_by=(locked_by or b"").decode(errors="replace"),
        locked_at=_moment(_number(locked_at, "locked_at") or 0),
        lock_until=_moment(_number(lock_until, "lock_until") or 0),
        fencing_token=_number(fencing_token, "fencing_token"),
        last_fire_time=None if newest is None else _moment(newest),
        read_at=_moment(now),
    )


def _number(value: bytes | None, field: str, longest: int = 16) -> int | None:
    """As numbers.lua reads them."""
    if value is None:
        return None
    if len(value) > longest or not re.fullmatch(rb"-?[0-9]+", value):
        raise ValueError(f"{field}: {value[:40].decode(errors='replace')!r}")
    return int(value)


def _moment(microseconds: int) -> datetime:
    return _EPOCH + microseconds * MICROSECOND


def _odd(key: bytes, error: Exception) -> str:
    """The error for a record that another program has written."""
    return (
        f"a field of this lock record is not a number of microseconds or a token ({reason(error)}). Read it with "
        f"HGETALL {key.decode()}, and delete the key if the lock is not held."
    )
