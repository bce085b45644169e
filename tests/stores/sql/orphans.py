"""A child that outlives its parent, on a SQLite file: ``python -m tests.stores.sql.orphans FORK KIND FILE``.

It says "ready" once it has asked for a lock; for each line that it gets it asks for "job".
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py import LockRequest
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from shedlock_py.testing.forks import python_fork
from tests.support.forks import c_fork


def of_url(file: str) -> Any:
    return SqlAlchemyLockProvider(f"sqlite:///{file}")


def of_engine(file: str) -> Any:
    return SqlAlchemyLockProvider(create_engine(f"sqlite:///{file}"))


def of_used_engine(file: str) -> Any:
    engine = create_engine(f"sqlite:///{file}")
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT * FROM shedlock")
    return SqlAlchemyLockProvider(engine)


def of_engine_used_early(file: str) -> Any:
    """Which the application replaces in the child, as SQLAlchemy says to, and uses before there is any lock."""
    engine = create_engine(f"sqlite:///{file}")
    event.listen(engine, "connect", lambda connection, _: connection.execute("SELECT * FROM shedlock"))
    used_early.append(engine)
    return SqlAlchemyLockProvider(engine)


used_early: list[Engine] = []


def of_async_url(file: str) -> Any:
    return AsyncSqlAlchemyLockProvider(f"sqlite+aiosqlite:///{file}")


def of_async_engine(file: str) -> Any:
    return AsyncSqlAlchemyLockProvider(create_async_engine(f"sqlite+aiosqlite:///{file}"))


KINDS: dict[str, Callable[[str], Any]] = {
    "url": of_url,
    "engine": of_engine,
    "used engine": of_used_engine,
    "engine used early": of_engine_used_early,
    "async url": of_async_url,
    "async engine": of_async_engine,
}
FORKS: dict[str, Callable[[], int]] = {"Python": python_fork, "C": c_fork}


def main(fork: str, kind: str, file: str) -> None:
    providers = [KINDS[kind](file), KINDS[kind](file)]  # what one has open concerns the other

    async def ask_async(provider: Any, name: str) -> Any:
        return await provider.acquire(LockRequest(name, "1m"))

    def ask(provider: Any, name: str) -> bool:
        if kind.startswith("async"):
            return runner.run(ask_async(provider, name)) is not None
        return provider.acquire(LockRequest(name, "1m")) is not None

    runner = asyncio.Runner()
    for number, provider in enumerate(providers):
        assert ask(provider, f"parent-{number}")
    if FORKS[fork]() != 0:
        signal.pause()  # until it is killed
    runner = asyncio.Runner()
    for engine in used_early:
        engine.dispose(close=False)
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT * FROM shedlock")
    assert ask(providers[0], "child")
    print("ready", flush=True)
    for _ in sys.stdin:
        print(ask(providers[0], "job"), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
