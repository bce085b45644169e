"""I12 at every await: a guarded run is given up. It ran or it did not, and its lock is free soon after."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from itertools import count
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from shedlock_py import attempt_async, extend_lock_async, hold_async
from shedlock_py.guard.heartbeat_plan import HeartbeatPlan
from shedlock_py.providers.mongodb import AsyncMongoLockProvider
from tests.faults.awaits import GIVEN_UP, WAYS, Moment, nothing_goes_on
from tests.support.stores import ALL as REGISTERED
from tests.support.stores import MongoStore, Store

# By name: the registered store, and the async driver if the store has several.
STORES: dict[str, tuple[str, ...]] = {
    "sqlite+aiosqlite": ("sqlite",),
    "sqlite in threads": ("sqlite",),
    "postgresql+asyncpg": ("postgres", "postgresql+psycopg", "postgresql+asyncpg"),
    "postgresql+psycopg_async": ("postgres", "postgresql+psycopg", "postgresql+psycopg_async"),
    "mariadb+aiomysql": ("mariadb", "mysql+pymysql", "mysql+aiomysql"),
    "mariadb+asyncmy": ("mariadb", "mysql+pymysql", "mysql+asyncmy"),
    "mysql+aiomysql": ("mysql", "mysql+pymysql", "mysql+aiomysql"),
    "mysql+asyncmy": ("mysql", "mysql+pymysql", "mysql+asyncmy"),
}
STORES |= {name: (name,) for name in REGISTERED if name not in {store for store, *_ in STORES.values()}}
MakeStore = Callable[..., Store]
# The short run tests the drivers.
SHORT = [("cancelled", "attempt"), ("out of time", "keep_alive")]
ALL = [(way, kind) for way in WAYS for kind in ("attempt", "hold", "keep_alive", "extending")]
IN_MAKE_TEST = ("sqlite+aiosqlite", "sqlite in threads", "postgresql+asyncpg", "mysql+asyncmy", "redis")
"""The contract cancels each operation on every store."""


def marks_of(store: str, way: str, kind: str) -> list[pytest.MarkDecorator]:
    if (way, kind) not in SHORT:
        return [pytest.mark.matrix("tests/core/test_every_await.py has all ways and kinds, in virtual time")]
    if store == "kubernetes":
        return [pytest.mark.matrix("the client is etcd's")]
    if store in IN_MAKE_TEST and way == "cancelled":
        return []
    return [pytest.mark.slow("gives a run up a hundred times")]


CASES = [pytest.param(store, way, kind, marks=marks_of(store, way, kind)) for store in STORES for way, kind in ALL]

MOST_AWAITS = 400


def open_async(store: Store) -> Any:
    if isinstance(store, MongoStore):
        # A streaming monitor of PyMongo waits in two tasks, and starts new tasks every ten seconds, without end.
        url = store.server.url(store.database, serverMonitoringMode="poll")
        return AsyncMongoLockProvider(url, **store.options)
    return store.open_async()


@asynccontextmanager
async def opened(make_store: MakeStore, name: str) -> AsyncIterator[Any]:
    store = make_store(*STORES[name])
    if name == "sqlite in threads":
        with closing(store.open()) as provider:
            yield provider
        return
    provider = open_async(store)
    await provider.create_schema()  # connects: the tasks that its driver starts are not part of a run
    yield provider
    await provider.close()


class Run:
    latest: ClassVar[Run]

    def __init__(self, provider: Any, name: str) -> None:
        self.provider, self.name = provider, name
        self.started = self.finished = False
        self.two_heartbeats = asyncio.Event()
        self._heartbeats = -1  # the plan of the lease counts the acquire, too
        Run.latest = self

    def extended(self) -> None:
        self._heartbeats += 1
        if self._heartbeats == 2:
            self.two_heartbeats.set()

    async def task(self) -> str:
        assert not self.started
        self.started = True
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        self.finished = True
        return "done"

    async def attempt(self) -> object:
        return await attempt_async(self.name, self.task, lock_at_most_for="1h", provider=self.provider)

    async def hold(self, *, keep_alive: bool = False, extends: bool = False) -> object:
        lock_for = "30m" if extends else "1h"
        async with hold_async(self.name, lock_at_most_for=lock_for, keep_alive=keep_alive, provider=self.provider):
            if keep_alive:
                # Every run has the same number of awaits, however slow the store is.
                await self.two_heartbeats.wait()
            if extends:
                await extend_lock_async("1h")
            return await self.task()

    async def keep_alive(self) -> object:
        return await self.hold(keep_alive=True)

    async def extending(self) -> object:
        return await self.hold(extends=True)

    def of(self, kind: str) -> Coroutine[Any, Any, object]:
        work: Coroutine[Any, Any, object] = getattr(self, kind)()
        return work


@pytest.mark.parametrize(("store", "way", "kind"), CASES)
def test_i12_a_run_that_is_given_up_at_any_await_leaves_its_lock_free(
    store: str, way: str, kind: str, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Heartbeats every 8 ms for leases of an hour: a lock that is still held is found, as it does not expire.
    monkeypatch.setattr(HeartbeatPlan, "HEARTBEATS", 450_000)
    extended = HeartbeatPlan.extended

    def counted(plan: HeartbeatPlan, *args: Any) -> None:
        extended(plan, *args)
        Run.latest.extended()

    monkeypatch.setattr(HeartbeatPlan, "extended", counted)

    async def main() -> list[str]:
        async with opened(make_store, store) as provider:
            warm = Run(provider, f"warm-{uuid4().hex[:8]}")
            assert await warm.of(kind)
            return await given_up_at_each(provider, way, kind)

    ends = asyncio.run(main())
    gc.collect()  # coroutines that were never awaited complain here, not in another test
    print(f"{store}, {kind}, {way}: {len(ends)} awaits, {ends.count('was given up')} in or after the task")
    assert ends[-1] == "ran to its end"
    given_up = [end for end in ends if end != "ran to its end"]
    assert len(given_up) >= 4, ends
    assert "did not run" in given_up, ends
    assert "was given up" in given_up, ends


async def given_up_at_each(provider: Any, way: str, kind: str) -> list[str]:
    """Give up a run at the first await, another run at the second await, and so on. Return the results."""
    loop = asyncio.get_running_loop()
    name, before = f"awaits-{uuid4().hex[:8]}", asyncio.all_tasks()
    ends: list[str] = []
    in_vain = 0
    for number in count():
        assert number < MOST_AWAITS, "it never got to its end"
        run, moment = Run(provider, f"{name}-{number}"), Moment(number)
        loop.set_task_factory(moment.task_factory)
        try:
            result = await WAYS[way](moment, run.of(kind))
        except* GIVEN_UP:
            result = None
        finally:
            loop.set_task_factory(None)
        assert result is None or run.finished
        await nothing_goes_on(before)
        await assert_free(provider, run.name)
        ends.append("did not run" if not run.started else "ran to its end" if result is not None else "was given up")
        # Some runs have one heartbeat more: stop after several runs in a row that did not reach the await.
        in_vain = 0 if moment.has_come else in_vain + 1
        if in_vain == 3:
            return ends
    raise AssertionError("unreachable")


async def assert_free(provider: Any, name: str) -> None:
    record = provider.record(name)
    if inspect.isawaitable(record):
        record = await record
    assert record is None or not record.is_held, f"{name}: {record}"
