"""The tests' jobs. Persistent job stores and worker processes import them from this module.

When it runs, each job writes one line to the file ``log``, then waits for the file ``until`` and raises ``fail``, if
given.
"""

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from shedlock_py import (
    InMemoryLockProvider,
    Lease,
    LockRequest,
    ProviderError,
    ProviderUnreachable,
    configure,
    scheduler_lock,
)
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider

LONGEST_WAIT = 20.0  # seconds


def runs(log: Path | str) -> int:
    """Return how often a job with this log has run."""
    return Path(log).read_text().count("\n") if Path(log).exists() else 0


def _begin(log: str) -> float:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{os.getpid()}\n".encode())  # one write, so that lines of many processes do not mix
    os.close(file)
    return time.monotonic() + LONGEST_WAIT


def _waits(until: str | None, deadline: float) -> bool:
    if until is None or Path(until).exists():
        return False
    assert time.monotonic() < deadline, f"{until} was not created"
    return True


def _end(fail: str | None) -> str:
    if fail is not None:
        raise ValueError(fail)
    return "done"


def unlocked(log: str, until: str | None = None, fail: str | None = None) -> str:
    deadline = _begin(log)
    while _waits(until, deadline):
        time.sleep(0.005)
    return _end(fail)


async def unlocked_async(log: str, until: str | None = None, fail: str | None = None) -> str:
    deadline = _begin(log)
    while _waits(until, deadline):  # noqa: ASYNC110 (a file opens the gate)
        await asyncio.sleep(0.005)
    return _end(fail)


@scheduler_lock("{lock}", "1m")
def locked(lock: str, log: str, until: str | None = None, fail: str | None = None) -> str:
    return unlocked(log, until, fail)


@scheduler_lock("{lock}", "1m")
async def locked_async(lock: str, log: str, until: str | None = None, fail: str | None = None) -> str:
    return await unlocked_async(log, until, fail)


class Methods:
    @scheduler_lock("{lock}", "1m")
    def method(self, lock: str, log: str) -> str:
        return unlocked(log)

    @classmethod
    @scheduler_lock("{lock}", "1m")
    def class_method(cls, lock: str, log: str) -> str:
        return unlocked(log)

    @staticmethod
    @scheduler_lock("{lock}", "1m")
    def static_method(lock: str, log: str) -> str:
        return unlocked(log)


class AsyncMethods:
    @scheduler_lock("{lock}", "1m")
    async def method(self, lock: str, log: str) -> str:
        return await unlocked_async(log)


class CallableObject:
    @scheduler_lock("{lock}", "1m")
    def __call__(self, lock: str, log: str) -> str:
        return unlocked(log)


def partial_of_locked(lock: str) -> Any:
    return partial(partial(locked), lock)


class DownProvider(InMemoryLockProvider):
    """A store that rejects this user, so that a retry cannot help."""

    def acquire(self, request: LockRequest) -> Lease | None:
        try:
            raise OSError("connection refused")
        except OSError as error:
            raise ProviderError("the store is down", operation="acquire", lock_name=request.name) from error


@scheduler_lock("{lock}", "1m", provider=DownProvider())
def locked_by_nobody(lock: str, log: str) -> str:
    return unlocked(log)


@scheduler_lock("{lock}", "1m", provider=DownProvider())
async def locked_by_nobody_async(lock: str, log: str) -> str:
    return await unlocked_async(log)


down_providers_made = 0


def make_down_provider() -> DownProvider:
    global down_providers_made
    down_providers_made += 1
    return DownProvider()


def name_by_first_argument(job: Any) -> Any:
    """A lock_extractor."""
    return job.args[0]


def configure_java_table(url: str) -> None:
    """Set up a worker process with its locks in a table of ShedLock for Java."""
    configure(SqlAlchemyLockProvider(url, extra_columns=False))


class SwitchedProvider(SqlAlchemyLockProvider):
    """A store that is unreachable until the file ``up`` exists beside it."""

    def acquire(self, request: LockRequest) -> Lease | None:
        directory = Path(os.environ["SHEDLOCK_TEST_SWITCH"])
        if (directory / "up").exists():
            return super().acquire(request)
        (directory / "failed").touch()
        raise ProviderUnreachable("the store is down", operation="acquire", lock_name=request.name)


def make_switched_provider() -> SwitchedProvider:
    provider = SwitchedProvider(f"sqlite:///{os.environ['SHEDLOCK_TEST_SWITCH']}/switched.db")
    provider.create_schema()
    return provider
