"""A contender with an open session, sync or async, and the loops that time it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter_ns

from benchmarks.contenders import AsyncSession, Contender, Session
from benchmarks.servers import Site


class Subject:
    """:param runner: the event loop of all async contenders."""

    def __init__(self, contender: Contender, site: Site, runner: asyncio.Runner) -> None:
        self.contender = contender
        self._runner = runner
        self._session = contender.open(site)
        if isinstance(self._session, AsyncSession):
            runner.run(self._session.start())

    def cycles(self, names: Sequence[str]) -> list[int]:
        """Acquire and release each name. Return the nanoseconds for each name."""
        if isinstance(self._session, AsyncSession):
            return self._runner.run(_cycles_async(self._session, names))
        return _cycles(self._session, names)

    def refusals(self, name: str, times: int) -> list[int]:
        """Attempt a lock that another client holds. Return the nanoseconds of each attempt."""
        if isinstance(self._session, AsyncSession):
            return self._runner.run(_refusals_async(self._session, name, times))
        return _refusals(self._session, name, times)

    def keep(self, name: str) -> None:
        if isinstance(self._session, AsyncSession):
            self._runner.run(self._session.keep(name))
        else:
            self._session.keep(name)

    def close(self) -> None:
        if isinstance(self._session, AsyncSession):
            self._runner.run(self._session.close())
        else:
            self._session.close()


def _cycles(session: Session, names: Sequence[str]) -> list[int]:
    cycle, now, took = session.cycle, perf_counter_ns, []
    for name in names:
        begin = now()
        cycle(name)
        took.append(now() - begin)
    return took


async def _cycles_async(session: AsyncSession, names: Sequence[str]) -> list[int]:
    cycle, now, took = session.cycle, perf_counter_ns, []
    for name in names:
        begin = now()
        await cycle(name)
        took.append(now() - begin)
    return took


def _refusals(session: Session, name: str, times: int) -> list[int]:
    refused, now, took = session.refused, perf_counter_ns, []
    for _ in range(times):
        begin = now()
        was_refused = refused(name)
        took.append(now() - begin)
        if not was_refused:
            raise RuntimeError(f"{name} was granted although another client holds it")
    return took


async def _refusals_async(session: AsyncSession, name: str, times: int) -> list[int]:
    refused, now, took = session.refused, perf_counter_ns, []
    for _ in range(times):
        begin = now()
        was_refused = await refused(name)
        took.append(now() - begin)
        if not was_refused:
            raise RuntimeError(f"{name} was granted although another client holds it")
    return took
