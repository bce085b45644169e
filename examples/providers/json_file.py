"""Locks in one JSON file, for the processes of one Linux machine. Explained in docs/providers/writing-your-own.md."""

from __future__ import annotations

import fcntl
import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from shedlock_py import Lease, LockProvider, LockRecord, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.durations import Duration, parse_duration
from shedlock_py.rules import Claim, validate_name, validate_prefix

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NEW_FILE = '{"boot_id": "", "booted_at": 0, "last_token": 0, "records": {}}'


def boot_clock() -> float:
    """Seconds since the machine was started: the same in all its processes, and nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class JsonFileLockProvider(LockProvider):
    """Locks in the file ``path`` on a local disk; make it once with :meth:`create_schema`.

    An operation that has waited ``wait_for`` for other processes raises :class:`ProviderUnreachable`.
    """

    def __init__(self, path: str | Path, *, wait_for: Duration = "5s") -> None:
        self._path = Path(path)
        self._wait_for = parse_duration(wait_for, "wait_for")

    def acquire(self, request: LockRequest) -> Lease | None:
        return self._claim("acquire", request)

    def take_over(self, request: LockRequest) -> Lease:
        lease = self._claim("take_over", request)
        assert lease is not None
        return lease

    def _claim(self, operation: str, request: LockRequest) -> Lease | None:
        claim = Claim(request, boot_clock)  # first of all: the holder's trust counts from here
        fire_time = (request.fire_time - EPOCH) // MICROSECOND if request.fire_time else None
        with self._opened(operation, request.name) as (data, now):
            record = data["records"].get(request.name)
            ran = record["last_fire_time"] if record else None
            has_run = fire_time is not None and ran is not None and ran >= fire_time
            if operation == "acquire" and (has_run or _is_held(record, now)):
                return None
            token = data["last_token"] = max(data["last_token"] + 1, now)  # of the file: it outlives the records
            data["records"][request.name] = {
                "locked_by": claim.locked_by,
                "locked_at": now,
                "lock_until": now + request.lock_at_most_for // MICROSECOND,
                "fencing_token": token,
                "last_fire_time": ran if has_run or fire_time is None else fire_time,
            }
        return claim.granted(token)  # last of all: the minimum hold counts from here

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        extension = lease.begin_extension(lock_at_most_for)
        if not self._hold_for("extend", lease, extension.lock_for):
            lease.lose()
            return None
        return extension.granted()

    def release(self, lease: Lease) -> bool:
        if not self._hold_for("release", lease, lease.begin_release()):
            lease.lose()
            return False
        lease.end()
        return True

    def _hold_for(self, operation: str, lease: Lease, lock_for: timedelta) -> bool:
        """Let the lock end ``lock_for`` from now, if exactly this acquisition holds it."""
        if lease.has_ended():
            return False
        with self._opened(operation, lease.name) as (data, now):
            record = data["records"].get(lease.name)
            ours = lease.locked_by, lease.fencing_token
            if not _is_held(record, now) or (record["locked_by"], record["fencing_token"]) != ours:
                return False
            record["lock_until"] = now + lock_for // MICROSECOND
        return True

    def record(self, name: str) -> LockRecord | None:
        with self._opened("record", validate_name(name)) as (data, now):
            return _to_record(name, data["records"][name], now) if name in data["records"] else None

    def records(self, prefix: str = "") -> list[LockRecord]:
        validate_prefix(prefix)
        with self._opened("records") as (data, now):
            found = sorted((name, record) for name, record in data["records"].items() if name.startswith(prefix))
            return [_to_record(name, record, now) for name, record in found]

    def force_release(self, name: str) -> bool:
        with self._opened("force_release", validate_name(name)) as (data, now):
            record = data["records"].get(name)
            if not _is_held(record, now):
                return False
            record["lock_until"] = now
        return True

    def prune(self, unused_for: Duration) -> int:
        unused = parse_duration(unused_for, "unused_for", zero=True) // MICROSECOND
        with self._opened("prune") as (data, now):
            old = [name for name, record in data["records"].items() if record["lock_until"] <= now - unused]
            for name in old:
                del data["records"][name]
        return len(old)

    def create_schema(self) -> None:
        with self._opened("create_schema"):
            pass

    @contextmanager
    def _opened(self, operation: str, lock_name: str | None = None) -> Iterator[tuple[dict[str, Any], int]]:
        """The file's content, and the time, for a block that is alone with it; written if the block changed it."""
        try:
            number = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._wait_for_our_turn(number)
                is_new = operation == "create_schema" and not self._path.exists()
                before = NEW_FILE if is_new else self._path.read_text("utf-8")
                data = json.loads(before)
                yield data, _now(data)
                after = json.dumps(data, ensure_ascii=False, indent=1)
                if after != before:
                    self._replace(after)
            finally:
                fcntl.flock(number, fcntl.LOCK_UN)  # to close it is not enough if a forked child has it open, too
                os.close(number)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            is_missing = isinstance(error, FileNotFoundError)
            kind = ProviderUnreachable if isinstance(error, OSError) and not is_missing else ProviderError
            what = f"{operation} of lock {lock_name!r}" if lock_name is not None else operation
            advice = " — make its directory, and then provider.create_schema()" if is_missing else ""
            message = f"{what} in {self._path}: {error}{advice}"
            raise kind(message, operation=operation, lock_name=lock_name) from error

    def _wait_for_our_turn(self, number: int) -> None:
        give_up_at = boot_clock() + self._wait_for.total_seconds()
        while True:
            try:
                return fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if boot_clock() > give_up_at:
                    raise TimeoutError(f"others have had it for {self._wait_for}") from None
            time.sleep(random.uniform(0.001, 0.005))

    def _replace(self, text: str) -> None:
        new = Path(f"{self._path}.new")
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)  # the last step: whoever fails or is killed before it has changed nothing


def _now(data: dict[str, Any]) -> int:
    """The store's clock, in microseconds since 1970: set when the machine was started, and not again."""
    since_boot, boot_id = int(boot_clock() * 1_000_000), BOOT_ID.read_text()
    if data["boot_id"] != boot_id:
        data["boot_id"] = boot_id
        data["booted_at"] = max(time.time_ns() // 1000, data["last_token"]) - since_boot  # it does not go back
    now: int = data["booted_at"] + since_boot
    return now


def _is_held(record: Any, now: int) -> bool:
    return record is not None and record["lock_until"] > now


def _to_record(name: str, record: dict[str, Any], now: int) -> LockRecord:
    def moment(microseconds: int) -> datetime:
        return EPOCH + microseconds * MICROSECOND

    return LockRecord(
        name=name,
        locked_by=record["locked_by"],
        locked_at=moment(record["locked_at"]),
        lock_until=moment(record["lock_until"]),
        fencing_token=record["fencing_token"],
        last_fire_time=None if record["last_fire_time"] is None else moment(record["last_fire_time"]),
        read_at=moment(now),
    )


def provider_at(url: str) -> JsonFileLockProvider:
    """For ``jsonfile:///path/to/locks.json``."""
    return JsonFileLockProvider(unquote(urlsplit(url).path))
