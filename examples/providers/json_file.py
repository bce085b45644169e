"""Locks in one JSON file, for the processes of one machine. Explained in docs/providers/writing-your-own.md."""

import fcntl
import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from shedlock_py.model.durations import Duration
from shedlock_py.providers import kit

NEW_FILE = '{"last_token": 0, "records": {}}'


class JsonPrograms(kit.RecordPrograms):
    """The programs of the kit for stores that carry a function out, and what the errors of a file mean."""

    def create_schema(self) -> Any:
        yield create

    def classify(self, error: Exception) -> kit.Failure:
        if isinstance(error, FileNotFoundError | ValueError | LookupError | TypeError | AttributeError):
            return kit.Failure.REFUSED  # no file, or one with something else in it
        return kit.Failure.NOT_DONE if isinstance(error, OSError) else kit.Failure.NOT_A_STORE_ERROR

    def hint(self, error: Exception) -> str | None:
        is_missing = isinstance(error, FileNotFoundError)
        return "make its directory, and then call provider.create_schema()" if is_missing else None


class JsonFile:
    """The client: carries a command out while no other process uses the file."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def execute(self, command: kit.RecordCommand, timeout: float | None) -> Any:
        with self._locked(timeout):
            is_new = command is create and not self._path.exists()
            before = NEW_FILE if is_new else self._path.read_text("utf-8")
            now = datetime.fromtimestamp(time.clock_gettime(time.CLOCK_REALTIME), UTC)  # of the machine: see the page
            records = load(before, now)
            reply = command(records, now)
            after = dump(records)
            if is_new or after != before:
                self._replace(after)
            return reply

    @contextmanager
    def _locked(self, timeout: float | None) -> Iterator[None]:
        until = time.monotonic() + (timeout or 0)
        number = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            while True:
                try:
                    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise kit.TimedOut(f"the processes that lock {self._path}", sent=False) from None
                time.sleep(random.uniform(0.001, 0.005))
            yield
        finally:
            fcntl.flock(number, fcntl.LOCK_UN)  # closing is not enough if a forked child has it open, too
            os.close(number)

    def _replace(self, text: str) -> None:
        new = Path(f"{self._path}.new")
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)  # the last step: a process that fails or is killed before it has changed nothing


class JsonFileLockProvider(kit.ProgramProvider):
    """Locks in the file ``path`` on a local disk; make it once with :meth:`create_schema`."""

    def __init__(self, path: str | Path, *, timeout: Duration = "5s") -> None:
        super().__init__(JsonPrograms(timeout=timeout), JsonFile(path))


class AsyncJsonFileLockProvider(kit.AsyncProgramProvider):
    """:class:`JsonFileLockProvider` for asyncio."""

    def __init__(self, path: str | Path, *, timeout: Duration = "5s") -> None:
        super().__init__(JsonPrograms(timeout=timeout), kit.ThreadedClient(JsonFile(path)))


def create(records: kit.Records, now: datetime) -> None:
    """The command that may find no file. It changes nothing else."""


def load(text: str, now: datetime) -> kit.Records:
    data = json.loads(text)
    records = {name: kit.record_from_json(name, fields, now) for name, fields in data["records"].items()}
    return kit.Records(records, data["last_token"])


def dump(records: kit.Records) -> str:
    by_name = {name: kit.record_to_json(record) for name, record in records.by_name.items()}
    return json.dumps({"last_token": records.last_token, "records": by_name}, ensure_ascii=False, indent=1)


def provider_at(url: str) -> JsonFileLockProvider:
    """For ``jsonfile:///path/to/locks.json``."""
    return JsonFileLockProvider(unquote(urlsplit(url).path))
