"""Worker processes that call the same function at the same moment."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from typing import Any

SIZE = 10
LONGEST = 60.0
"""Seconds for one call in all workers."""

CallAll = Callable[..., list[Any]]
"""``call_all(function, *args)`` returns each worker's result; an exception counts as its text."""

PRELOADED = ["tests.support.stores", "sqlalchemy.ext.asyncio", "shedlock_py.testing.contract"]
PRELOADED += ["psycopg", "asyncpg", "pymysql", "asyncmy", "aiosqlite", "redis.asyncio", "pymongo", "httpx", "boto3"]
PRELOADED += ["aiobotocore.session"]
"""Modules that the fork server imports once, so that a test process starts in milliseconds instead of a second."""

_barrier: Barrier


def preload() -> None:
    """Let the fork server of this process import the clients of all stores, once it starts."""
    multiprocessing.set_forkserver_preload(PRELOADED)


@contextmanager
def workers() -> Iterator[CallAll]:
    context = multiprocessing.get_context("forkserver")
    barrier = context.Barrier(SIZE)
    with context.Pool(SIZE, _initialize, (barrier,)) as pool:
        yield lambda function, *args: pool.starmap_async(_call, [(function, args)] * SIZE, chunksize=1).get(LONGEST)


def _initialize(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def _call(function: Callable[..., object], args: tuple[object, ...]) -> object:
    _barrier.wait(LONGEST)  # wait: so each worker gets one call
    try:
        return function(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
