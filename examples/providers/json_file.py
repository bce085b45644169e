"""Locks in one JSON file, for the processes of one Linux machine. Explained in docs/providers/writing-your-own.md."""

import asyncio
import fcntl
import json
import os
import random
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from shedlock_py import Lease, LockRecord, ProviderError, ProviderUnreachable
from shedlock_py.durations import Duration
from shedlock_py.lease import Claim
from shedlock_py.providers import kit

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NEW_FILE = '{"boot_id": "", "booted_at": 0, "last_token": 0, "records": {}}'

Record = dict[str, Any]
Command = Callable[[dict[str, Any], int], Any]
"""A step that runs alone with the file: it gets the content, which it may change, and the time in microseconds."""
Program = Generator[Command, Any, Any]


def boot_clock() -> float:
    """Seconds since the machine was started: the same in all its processes, and nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class JsonPrograms(kit.StorePrograms):
    """The programs: each yields one command."""

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> Program:
        request = claim.request
        fire_time = (request.fire_time - EPOCH) // MICROSECOND if request.fire_time else 0

        def grant(data: Record, now: int) -> int | None:
            if fire_time > now + self.fire_time_tolerance // MICROSECOND:
                raise kit.fire_time_too_late("take_over" if force else "acquire", request, self.fire_time_tolerance)
            record = data["records"].get(request.name) or {"fencing_token": None, "lock_until": 0, "last_fire_time": 0}
            if force:
                if record["fencing_token"] != (before.fencing_token if before else None):
                    return None  # the record has changed since it was read
            elif record["lock_until"] > now or 0 < fire_time <= record["last_fire_time"]:
                return None
            token: int = max(data["last_token"] + 1, now)  # the counter is the file's: it outlives the records
            data["last_token"] = token
            data["records"][request.name] = {
                "locked_by": claim.locked_by,
                "locked_at": now,
                "lock_until": now + request.lock_at_most_for // MICROSECOND,
                "fencing_token": token,
                "last_fire_time": max(record["last_fire_time"], fire_time),
            }
            return token

        return (yield grant)

    def hold(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> Program:
        def set_end(record: Record, now: int) -> bool:
            if record["lock_until"] <= now:
                return False
            if (record["locked_by"], record["fencing_token"]) != (lease.locked_by, lease.fencing_token):
                return False
            record["lock_until"] = now + lock_for // MICROSECOND
            return True

        return (yield _on_record(lease.name, set_end))

    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> Program:
        def undo(record: Record, now: int) -> bool:
            if record["locked_by"] != locked_by:
                return False
            record["lock_until"] = min(record["lock_until"], now)
            if former_fire_time:
                former = (former_fire_time - EPOCH) // MICROSECOND
                record["last_fire_time"] = min(record["last_fire_time"], former)
            return True

        return (yield _on_record(name, undo))

    def force_release(self, name: str) -> Program:
        def release(record: Record, now: int) -> bool:
            was_held: bool = record["lock_until"] > now
            record["lock_until"] = min(record["lock_until"], now)
            return was_held

        return (yield _on_record(name, release))

    def forget_fire_time(self, name: str) -> Program:
        def forget(record: Record, now: int) -> bool:
            was_known = bool(record["last_fire_time"])
            record["last_fire_time"] = 0
            return was_known

        return (yield _on_record(name, forget))

    def record(self, name: str) -> Program:
        return (yield _on_record(name, lambda record, now: _to_record(name, record, now), absent=None))

    def records(self, prefix: str) -> Program:
        return (yield lambda data, now: [_to_record(name, record, now) for name, record in data["records"].items()])

    def prune(self, unused_for: timedelta) -> Program:
        def delete(data: Record, now: int) -> int:
            limit, records = now - unused_for // MICROSECOND, data["records"]
            data["records"] = {name: record for name, record in records.items() if record["lock_until"] > limit}
            return len(records) - len(data["records"])

        return (yield delete)

    def create_schema(self) -> Program:
        yield _create

    def classify(self, error: Exception) -> kit.Failure:
        if isinstance(error, FileNotFoundError | ValueError | LookupError | TypeError | AttributeError):
            return kit.Failure.REFUSED  # no file, or one with something else in it
        return kit.Failure.NOT_DONE if isinstance(error, OSError) else kit.Failure.NOT_A_STORE_ERROR

    def explain(self, error: Exception, failure: kit.Failure, operation: str, lock_name: str | None) -> ProviderError:
        cure = (
            " — make its directory, and then provider.create_schema()" if isinstance(error, FileNotFoundError) else ""
        )
        kind = ProviderError if failure is kit.Failure.REFUSED else ProviderUnreachable
        return kind(kit.describe(operation, lock_name, f"{error}{cure}"), operation=operation, lock_name=lock_name)


class JsonFile:
    """The client: carries a command out, alone with the file."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def execute(self, command: Command, timeout: float | None) -> Any:
        number = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._wait_for_lock(number, timeout)
            before = NEW_FILE if command is _create and not self._path.exists() else self._path.read_text("utf-8")
            data = json.loads(before)
            reply = command(data, _now(data))
            after = json.dumps(data, ensure_ascii=False, indent=1)
            if after != before:
                self._replace(after)
            return reply
        finally:
            fcntl.flock(number, fcntl.LOCK_UN)  # closing is not enough if a forked child has it open, too
            os.close(number)

    def _wait_for_lock(self, number: int, timeout: float | None) -> None:
        until = boot_clock() + (timeout or 0)
        while True:
            try:
                return fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if boot_clock() > until:
                    raise kit.TimedOut(f"the processes that lock {self._path}", sent=False) from None
            time.sleep(random.uniform(0.001, 0.005))

    def _replace(self, text: str) -> None:
        new = Path(f"{self._path}.new")
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)  # the last step: a process that fails or is killed before it has changed nothing


class AsyncJsonFile:
    """The same in a worker thread."""

    def __init__(self, path: str | Path) -> None:
        self._file = JsonFile(path)

    async def execute(self, command: Command, timeout: float | None) -> Any:  # noqa: ASYNC109 (as the kit calls it)
        return await asyncio.to_thread(self._file.execute, command, timeout)


class JsonFileLockProvider(kit.ProgramProvider):
    """Locks in the file ``path`` on a local disk; make it once with :meth:`create_schema`."""

    def __init__(self, path: str | Path, *, timeout: Duration | None = None) -> None:
        seconds = kit.parse_timeout(timeout, None, is_managed=True)
        super().__init__(JsonPrograms(clock=boot_clock, timeout=seconds), JsonFile(path))


class AsyncJsonFileLockProvider(kit.AsyncProgramProvider):
    """:class:`JsonFileLockProvider` for asyncio."""

    def __init__(self, path: str | Path, *, timeout: Duration | None = None) -> None:
        seconds = kit.parse_timeout(timeout, None, is_managed=True)
        super().__init__(JsonPrograms(clock=boot_clock, timeout=seconds), AsyncJsonFile(path))


def _create(data: Record, now: int) -> None:
    """The command that may find no file."""


def _on_record(name: str, step: Callable[[Record, int], Any], absent: Any = False) -> Command:
    """A command for one record; its reply is ``absent`` if there is none."""
    return lambda data, now: step(data["records"][name], now) if name in data["records"] else absent


def _now(data: Record) -> int:
    """The store's clock, in microseconds since 1970: set when the machine was started, and not again."""
    since_boot, boot_id = int(boot_clock() * 1_000_000), BOOT_ID.read_text()
    if data["boot_id"] != boot_id:
        data["boot_id"] = boot_id
        data["booted_at"] = max(time.time_ns() // 1000, data["last_token"]) - since_boot  # it does not go back
    now: int = data["booted_at"] + since_boot
    return now


def _to_record(name: str, record: Record, now: int) -> LockRecord:
    def moment(microseconds: int) -> datetime:
        return EPOCH + microseconds * MICROSECOND

    return LockRecord(
        name=name,
        locked_by=record["locked_by"],
        locked_at=moment(record["locked_at"]),
        lock_until=moment(record["lock_until"]),
        fencing_token=record["fencing_token"],
        last_fire_time=moment(record["last_fire_time"]) if record["last_fire_time"] else None,
        read_at=moment(now),
    )


def provider_at(url: str) -> JsonFileLockProvider:
    """For ``jsonfile:///path/to/locks.json``."""
    return JsonFileLockProvider(unquote(urlsplit(url).path))
