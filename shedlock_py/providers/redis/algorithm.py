"""The operations on Redis: programs that say which script to run and decide what the replies mean.

Each operation is one Lua script, atomic and idempotent per claim id: one that ran but whose reply was lost may be
asked again, by us or by a client that retries by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from shedlock_py._program import Program
from shedlock_py.durations import Duration, in_milliseconds, parse_duration
from shedlock_py.errors import ProviderError, ProviderUnreachable
from shedlock_py.providers.redis.failures import Failure, classify, reason
from shedlock_py.providers.redis.scripts import Script, script
from shedlock_py.rules import Claim, Clock, Lease, LockRecord, LockRequest, validate_name, validate_prefix

KEPT = timedelta(days=30)
"""How long a lock record outlives its lease. Fencing tokens grow without it: they follow the server's clock."""


class Call(NamedTuple):
    """A command: run one script. The reply is what it returns, texts as bytes."""

    script: Script
    keys: tuple[bytes, ...]
    args: tuple[bytes | int, ...] = ()
    by_text: bool = False
    """Send the script itself, for a server that does not know it yet."""


class Scan(NamedTuple):
    """A command: find the keys that match a glob pattern. The reply is a list of keys."""

    pattern: bytes


Ask = Call | Scan
Redact = Callable[[str], str]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
KEPT_MS = in_milliseconds(KEPT)


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
        """The lock name of ``key``; None if it is none of ours."""
        if not key.startswith(self._start) or not key.endswith(b"}"):
            return None
        try:
            return key[len(self._start) : -1].decode()
        except UnicodeDecodeError:
            return None


class RedisAlgorithm:
    """The programs for one Redis server or cluster. ``clock`` is the holder's monotonic clock.

    :param keys_per_call: how many keys one script may read; one in a cluster, where they lie on different servers.
    :param has_retries: the client asks again by itself, so a failure to connect may follow a script that ran.
    """

    def __init__(
        self,
        key_prefix: str,
        clock: Clock,
        redact: Redact,
        *,
        keys_per_call: int = 500,
        has_retries: bool = False,
        place: str = "",
    ) -> None:
        self._keys = Keys(key_prefix)
        self._clock = clock
        self._redact = redact
        self._keys_per_call = keys_per_call
        self._has_retries = has_retries
        self._place = place

    # The programs

    def acquire(self, request: LockRequest) -> Program[Ask, Any, Lease | None]:
        claim = Claim(request, self._clock)
        token = yield from self._claim("acquire", claim)
        return claim.granted(token) if token else None

    def take_over(self, request: LockRequest) -> Program[Ask, Any, Lease]:
        claim = Claim(request, self._clock)
        token = yield from self._claim("take_over", claim)
        return claim.granted(token)

    def _claim(self, operation: str, claim: Claim) -> Program[Ask, Any, int]:
        request, key = claim.request, self._keys.of(claim.request.name)
        ask = Call(script(operation), (key,), (*claim_args(claim), KEPT_MS))

        def undo() -> Call:
            # By its text: the server may have forgotten the scripts when it was restarted, but not the records.
            return Call(script("release"), (key,), (claim.locked_by.encode(), 0, KEPT_MS), by_text=True)

        token: int = yield from self._ask(operation, request.name, ask, undo)
        return token

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Program[Ask, Any, Lease | None]:
        extension = lease.begin_extension(lock_at_most_for)
        if lease.has_ended():
            return None
        ask = extend("extend", self._keys.of(lease.name), lease, extension.lock_for, self._clock())
        if not (yield from self._ask("extend", lease.name, ask)):
            lease.lose()
            return None
        return extension.granted()

    def release(self, lease: Lease) -> Program[Ask, Any, bool]:
        if lease.has_ended():
            return False
        ask = release("release", self._keys.of(lease.name), lease, lease.begin_release())
        is_done = bool((yield from self._ask("release", lease.name, ask)))
        if is_done:
            lease.end()
        else:
            lease.lose()
        return is_done

    def force_release(self, name: str) -> Program[Ask, Any, bool]:
        ask = Call(script("force_release"), (self._keys.of(validate_name(name)),))
        return bool((yield from self._ask("force_release", name, ask)))

    def prune(self, unused_for: Duration) -> Program[Ask, Any, int]:
        unused = in_milliseconds(parse_duration(unused_for, "unused_for", zero=True))
        keys = yield from self._scan("prune", "")
        deleted = 0
        for some in self._chunks(sorted(keys)):
            deleted += sum((yield from self._ask("prune", None, Call(script("prune"), some, (unused,)))))
        return deleted

    def record(self, name: str) -> Program[Ask, Any, LockRecord | None]:
        ask = Call(script("records"), (self._keys.of(validate_name(name)),))
        reply = yield from self._ask("record", name, ask)
        return to_record(name, reply[1], reply[0]) if reply[1] else None

    def records(self, prefix: str) -> Program[Ask, Any, list[LockRecord]]:
        keys = yield from self._scan("records", prefix)
        found: list[LockRecord] = []
        for some in self._chunks(sorted(keys)):
            now, *rows = yield from self._ask("records", None, Call(script("records"), some))
            found += (to_record(keys[key], row, now) for key, row in zip(some, rows, strict=True) if row)
        return sorted(found, key=lambda record: record.name)

    def _scan(self, operation: str, prefix: str) -> Program[Ask, Any, dict[bytes, str]]:
        """The names, by key, that start with ``prefix``. A scan may find a key twice."""
        keys: list[bytes] = yield from self._ask(operation, None, Scan(self._keys.pattern(prefix)))
        names = {key: self._keys.name(key) for key in keys}
        return {key: name for key, name in names.items() if name is not None and name.startswith(prefix)}

    def _chunks(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, ...]]:
        for start in range(0, len(keys), self._keys_per_call):
            yield tuple(keys[start : start + self._keys_per_call])

    # Asking, and what errors mean

    def call(self, call: Call) -> Program[Ask, Any, Any]:
        """One script by itself, for the quorum; an error says which server it was."""
        return self._ask(self._place, None, call)

    def _ask(
        self, operation: str, lock_name: str | None, ask: Ask, undo: Callable[[], Call] | None = None
    ) -> Program[Ask, Any, Any]:
        """Ask the server; ask again where that can help, which is safe because scripts are idempotent.

        ``undo`` is asked, once, when it stays unknown whether ``ask`` was done.
        """
        broken = False
        while True:
            try:
                return (yield ask)
            except Exception as error:
                failure = classify(error)
                if failure is Failure.NO_SCRIPT and isinstance(ask, Call) and not ask.by_text:
                    ask = ask._replace(by_text=True)
                    continue
                if failure is Failure.GONE and not broken and not self._has_retries:
                    broken = True  # a pooled connection may be older than the server; a new one tells
                    continue
                was_sent = broken or self._has_retries or failure is not Failure.NOT_CONNECTED
                if undo is not None and was_sent:
                    # Nobody will use what may have been granted, be it by a script whose last command was refused
                    # (ACL). If it cannot be undone now, it ends by itself.
                    with suppress(Exception):
                        yield undo()
                if failure is Failure.FOREIGN:
                    raise
                raise explained(error, failure, operation, lock_name, self._redact) from error


def claim_args(claim: Claim) -> tuple[bytes | int, ...]:
    """Who claims, for how many ms, and for which fire time (us, or nothing)."""
    request = claim.request
    fire_time = b"" if request.fire_time is None else (request.fire_time - _EPOCH) // _MICROSECOND
    return claim.locked_by.encode(), in_milliseconds(request.lock_at_most_for), fire_time


def release(operation: str, key: bytes, lease: Lease, lock_for: timedelta) -> Call:
    """The call that lets exactly ``lease`` end ``lock_for`` from now."""
    return Call(script(operation), (key,), (lease.locked_by.encode(), in_milliseconds(lock_for), KEPT_MS))


def extend(operation: str, key: bytes, lease: Lease, lock_for: timedelta, now: float) -> Call:
    """The same while it lasts. ``now`` is the holder's clock: what a client asks again may come after a later one."""
    args = (
        lease.locked_by.encode(),
        in_milliseconds(lock_for),
        KEPT_MS,
        lease.fencing_token or 0,
        int(now * 1_000_000),
    )
    return Call(script(operation), (key,), args)


def to_record(name: str, row: Sequence[bytes | None], now: int) -> LockRecord:
    """A row of ``records.lua``."""
    locked_by, locked_at, lock_until, fencing_token, last_fire_time = row
    return LockRecord(
        name=name,
        locked_by=(locked_by or b"").decode(errors="replace"),
        locked_at=_moment(locked_at or 0),
        lock_until=_moment(lock_until or 0),
        fencing_token=int(fencing_token) if fencing_token else None,
        last_fire_time=_moment(last_fire_time) if last_fire_time else None,
        read_at=_moment(now),
    )


def _moment(microseconds: bytes | int) -> datetime:
    return _EPOCH + timedelta(microseconds=int(microseconds))


def explained(
    error: Exception, failure: Failure, operation: str, lock_name: str | None, redact: Redact
) -> ProviderError:
    what = f"{operation} of lock {lock_name!r}" if lock_name is not None else operation
    message = f"{what}: {redact(reason(error))}"
    if "WRONGTYPE" in str(error):
        message += " — somebody else's key has this name: choose another key_prefix"
    kind = ProviderError if failure in (Failure.REFUSED, Failure.NO_SCRIPT) else ProviderUnreachable
    return kind(message, operation=operation, lock_name=lock_name)
