"""The commands of the programs: run one Lua script, find keys, or read a setting."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from shedlock_py.model.durations import in_milliseconds
from shedlock_py.model.lease import Claim, Lease
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest, validate_prefix
from shedlock_py.providers import kit

KEPT_MS = in_milliseconds(timedelta(days=30))
"""How long a lock record outlives its lease. Fencing tokens do not need it: they follow the server's clock."""
KEPT_WITH_RUNS_MS = in_milliseconds(timedelta(days=3652))
"""The same for a record with runs: ten years, for jobs that run once a month or once a year."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


IN_FRONT = ("reading", "history")
"""Files at the start of every script. They define shared functions, such as number() and begin_run()."""


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: bytes
    sha: str
    """Identifies the script to a Redis that has executed it before."""


@cache
def script(name: str) -> Script:
    folder = files("shedlock_py.providers.redis").joinpath("lua")
    text = b"".join(folder.joinpath(f"{part}.lua").read_bytes() for part in (*IN_FRONT, name))
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


def read_scripts() -> None:
    """Read all scripts now, because later the process may have no file descriptor left."""
    for file in files("shedlock_py.providers.redis").joinpath("lua").iterdir():
        name, is_script, _ = file.name.partition(".lua")
        if is_script and name not in IN_FRONT:
            script(name)


Args = tuple[bytes | int, ...]


class Call(NamedTuple):
    """A command: run one script. The reply is the script's result, with texts as bytes."""

    script: Script
    keys: tuple[bytes, ...]
    args: Args = ()

    @property
    def can_grant(self) -> bool:
        return self.script.name in ("acquire", "take_over")

    @property
    def is_urgent(self) -> bool:
        return self.script.name in ("extend", "quorum_extend", "release", "undo")


@dataclass(frozen=True, slots=True)
class Scan(kit.GrantsNothing):
    """A command: list the keys that match a glob pattern."""

    pattern: bytes


@dataclass(frozen=True, slots=True)
class Setting(kit.GrantsNothing):
    """A command: read one setting. The reply is its value, or None if the server does not know it."""

    name: str


Command = Call | Scan | Setting


class Calls:
    """Builds the commands for lock names.

    The key of a lock record is ``{key_prefix}:{{name}}``. The braces make the name alone choose the cluster slot.

    :param has_history: the lock records have runs, so they are kept longer.
    """

    def __init__(self, key_prefix: str, *, has_history: bool = False) -> None:
        read_scripts()
        self.kept_ms = KEPT_WITH_RUNS_MS if has_history else KEPT_MS
        self._start = f"{validate_prefix(key_prefix, 'key_prefix')}:{{".encode()

    def key(self, name: str) -> bytes:
        return self._start + name.encode() + b"}"

    def name(self, key: bytes) -> str | None:
        """Return the lock name of ``key``, or None if another program uses the key."""
        if not key.startswith(self._start) or not key.endswith(b"}"):
            return None
        try:
            return key[len(self._start) : -1].decode()
        except UnicodeDecodeError:
            return None

    def scan(self, prefix: str) -> Scan:
        """Find the keys of the names that start with ``prefix``. Other keys may be found, too."""
        literal = self._start + validate_prefix(prefix).encode()
        escaped = b"".join(b"\\" + bytes([byte]) if byte in b"*?[]^\\" else bytes([byte]) for byte in literal)
        return Scan(escaped + b"*}")

    def hold(
        self, extend: str, lease: Lease, lock_for: timedelta, now: float, *, releasing: bool, runs_kept: int
    ) -> Call:
        """Let exactly ``lease`` end ``lock_for`` from now.

        :param extend: the script if it is not ``releasing``.
        :param now: the holder's clock, because a copy of the command may arrive after a later extension.
        :param runs_kept: the number of runs to keep. If 0, a release writes no history.
        """
        args = (lease.locked_by.encode(), in_milliseconds(lock_for), self.kept_ms)
        if releasing:
            run = (runs_kept, lease.outcome.encode(), (lease.error or "").encode(errors="replace")) if runs_kept else ()
            return Call(script("release"), (self.key(lease.name),), (*args, *run))
        return Call(script(extend), (self.key(lease.name),), (*args, lease.fencing_token or 0, int(now * 1_000_000)))

    def undo(self, name: str, locked_by: str, former_fire_time: datetime | None, runs_kept: int) -> Call:
        args = (locked_by.encode(), optional_microseconds(former_fire_time), self.kept_ms)
        return Call(script("undo"), (self.key(name),), (*args, runs_kept) if runs_kept else args)

    def free(self, record: LockRecord) -> Call:
        token = b"" if record.fencing_token is None else record.fencing_token
        former = optional_microseconds(kit.given_back(record))
        return Call(script("free"), (self.key(record.name),), (token, record.locked_by.encode(), former))

    def delete_fire_time(self, name: str, fire_time: datetime) -> Call:
        return Call(script("delete_fire_time"), (self.key(name),), (optional_microseconds(fire_time),))


def claim_args(claim: Claim) -> Args:
    """Return ``locked_by``, the length of the lease in ms, and the fire time in µs (empty if there is none)."""
    request = claim.request
    return claim.locked_by.encode(), in_milliseconds(request.lock_at_most_for), optional_microseconds(request.fire_time)


def run_args(request: LockRequest, runs_kept: int) -> Args:
    """Return the last arguments of a script that grants a lock and writes history: runs to keep, and next fire time."""
    return (runs_kept, optional_microseconds(request.next_fire_time)) if runs_kept else ()


def optional_microseconds(moment: datetime | None) -> bytes | int:
    """Return microseconds since 1970, or an empty text for None."""
    return b"" if moment is None else (moment - EPOCH) // MICROSECOND
