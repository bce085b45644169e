"""A child that outlives its parent, on a SQLite file: ``python -m tests.stores.sql.orphans FORK KIND FILE``.

It prints "True" once it has acquired a lock, or "refused". For each input line it acquires "job".
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py import LockRequest, ProviderError
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from shedlock_py.testing.forks import python_fork
from tests.support.forks import c_fork, prepare_for_c_forks


def of_url(file: str) -> Any:
    return SqlAlchemyLockProvider(f"sqlite:///{file}")


def of_engine(file: str) -> Any:
    return SqlAlchemyLockProvider(create_engine(f"sqlite:///{file}"))


def of_used_engine(file: str) -> Any:
    engine = create_engine(f"sqlite:///{file}")
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT * FROM shedlock")
    return SqlAlchemyLockProvider(engine)


def of_async_url(file: str) -> Any:
    return AsyncSqlAlchemyLockProvider(f"sqlite+aiosqlite:///{file}")


def of_async_engine(file: str) -> Any:
    return AsyncSqlAlchemyLockProvider(create_async_engine(f"sqlite+aiosqlite:///{file}"))


KINDS: dict[str, Callable[[str], Any]] = {
    "url": of_url,
    "engine": of_engine,
    "used engine": of_used_engine,
    "async url": of_async_url,
    "async engine": of_async_engine,
}
FORKS: dict[str, Callable[[], int]] = {"Python": python_fork, "C": c_fork}


def main(fork: str, kind: str, file: str) -> None:
    providers = [KINDS[kind](file), KINDS[kind](file)]  # an open connection of one affects the other

    async def acquire_async(provider: Any, name: str) -> Any:
        return await provider.acquire(LockRequest(name, "1m"))

    def acquire(provider: Any, name: str) -> object:
        try:
            if kind.startswith("async"):
                return runner.run(acquire_async(provider, name)) is not None
            return provider.acquire(LockRequest(name, "1m")) is not None
        except ProviderError as error:
            return "refused" if "forked while a SQLite connection was open" in str(error) else error

    runner = asyncio.Runner()
    for number, provider in enumerate(providers):
        assert acquire(provider, f"parent-{number}") is True
    if FORKS[fork]() != 0:
        signal.pause()  # until a test kills it
    runner = asyncio.Runner()
    print(acquire(providers[0], "child"), flush=True)
    for _ in sys.stdin:
        print(acquire(providers[1], "job"), flush=True)
    os._exit(0)


if __name__ == "__main__":
    prepare_for_c_forks()
    main(*sys.argv[1:])
