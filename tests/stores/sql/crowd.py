"""Processes that do the same thing at the same instant."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

from sqlalchemy import create_engine

from shedlock_py import async_provider_from_url
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider

SIZE = 10
PATIENCE = 60.0


class Crowd:
    """Processes that wait for each other before each call."""

    def __init__(self, links: list[Connection]) -> None:
        self._links = links

    def call(self, function: Callable[..., object], *args: object) -> list[Any]:
        """What each of them returns; an exception counts as its text."""
        for link in self._links:
            link.send((function, args))
        answers = []
        for link in self._links:
            if not link.poll(PATIENCE):
                raise AssertionError(f"no answer from {function.__name__}{args} within {PATIENCE:g} s")
            answers.append(link.recv())
        return answers


@contextmanager
def crowd() -> Iterator[Crowd]:
    context = multiprocessing.get_context("forkserver")  # which has imported everything, once
    context.set_forkserver_preload(["tests.stores.sql.crowd"])
    barrier = context.Barrier(SIZE)
    links, processes = [], []
    for _ in range(SIZE):
        ours, theirs = context.Pipe()
        process = context.Process(target=_obey, args=(theirs, barrier), daemon=True)
        process.start()
        theirs.close()
        links.append(ours)
        processes.append(process)
    try:
        yield Crowd(links)
    finally:
        for link in links:
            link.close()  # the process ends when it finds nobody there
        for process in processes:
            process.join(PATIENCE)
            process.kill()


def _obey(link: Connection, barrier: Barrier) -> None:
    while True:
        try:
            function, args = link.recv()
        except EOFError:
            return
        barrier.wait(PATIENCE)
        try:
            answer = function(*args)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        link.send(answer)


# What they do


def create_schema(url: str, table: str) -> None:
    provider = SqlAlchemyLockProvider(url, table_name=table)
    provider.create_schema()
    provider.close()


def create_schema_with_engine(url: str, table: str) -> None:
    engine = create_engine(url)
    SqlAlchemyLockProvider(engine, table_name=table).create_schema()
    engine.dispose()


def create_schema_async(url: str, table: str) -> None:
    async def create() -> None:
        assert async_provider_from_url(url)  # as an application does; nothing is connected
        provider = AsyncSqlAlchemyLockProvider(url, table_name=table)
        await provider.create_schema()
        await provider.close()

    asyncio.run(create())
