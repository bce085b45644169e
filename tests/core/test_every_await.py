"""I12 in virtual time: guards, their heartbeats and electors on asyncio are cancelled at every await."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from shedlock_py import AsyncLeaderElector, LockRequest, attempt_async, extend_lock_async, hold_async
from shedlock_py.providers.kit import AsyncProgramProvider
from shedlock_py.providers.memory import MemoryPrograms, MemoryStore
from tests.faults.awaits import GIVEN_UP, WAYS, Moment, nothing_goes_on
from tests.support.stepped_loop import SteppedLoop, run_stepped

LEASE = 3.0
DELAY = 0.1
"""Seconds for a request on its way, and for its reply."""
MOST_AWAITS = 400
KINDS = ("attempt", "hold", "keep_alive", "extending")


class DelayedClient:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def execute(self, command: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 (of the kit's client)
        await asyncio.sleep(DELAY)
        reply = self._store.execute(command, timeout)
        await asyncio.sleep(DELAY)
        return reply


def open_provider(loop: SteppedLoop) -> AsyncProgramProvider:
    store = MemoryStore(loop.clock)
    return AsyncProgramProvider(MemoryPrograms(store, None), DelayedClient(store))


class Run:
    def __init__(self, provider: AsyncProgramProvider, name: str) -> None:
        self.provider, self.name = provider, name
        self.started = self.finished = False

    async def task(self, seconds: float = 1.0) -> str:
        assert not self.started
        self.started = True
        await asyncio.sleep(0)
        await asyncio.sleep(seconds)
        self.finished = True
        return "done"

    async def attempt(self) -> object:
        return await attempt_async(self.name, self.task, lock_at_most_for=LEASE, provider=self.provider)

    async def hold(self) -> object:
        async with hold_async(self.name, lock_at_most_for=LEASE, provider=self.provider):
            return await self.task()

    async def keep_alive(self) -> object:
        async with hold_async(self.name, lock_at_most_for=LEASE, keep_alive=True, provider=self.provider):
            return await self.task(3 * LEASE)

    async def extending(self) -> object:
        async with hold_async(self.name, lock_at_most_for=LEASE, provider=self.provider):
            await extend_lock_async(2 * LEASE)
            return await self.task()


async def is_held(provider: AsyncProgramProvider, name: str) -> bool:
    record = await provider.record(name)
    return record is not None and record.is_held


async def at_each_await(loop: SteppedLoop, one: Callable[[Moment, int], Awaitable[str]]) -> list[str]:
    """Cancel a run at each await, and return the outcomes in order."""
    before, ends = asyncio.all_tasks(), []
    for number in count():
        assert number < MOST_AWAITS, "it never got to its end"
        moment = Moment(number)
        loop.set_task_factory(moment.task_factory)
        try:
            ends.append(await one(moment, number))
        finally:
            loop.set_task_factory(None)
        await nothing_goes_on(before)
        if not moment.has_come:
            return ends
    raise AssertionError("unreachable")


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_i12_a_guard_that_is_given_up_at_any_await(way: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: SteppedLoop) -> list[str]:
        provider = open_provider(loop)

        async def one(moment: Moment, number: int) -> str:
            run = Run(provider, f"job-{number}")
            try:
                result = await WAYS[way](moment, getattr(run, kind)())
            except* GIVEN_UP:
                result = None
            assert result is None or run.finished
            given_up_at = loop.time()
            while await is_held(provider, run.name):  # undone in the background, long before the lease ends
                assert loop.time() < given_up_at + 6 * DELAY, f"{run.name} is held after it was given up"
            return "did not run" if not run.started else "ran to its end" if result else "was given up"

        return await at_each_await(loop, one)

    ends: list[str] = run_stepped(main, monkeypatch)
    gc.collect()  # reports a coroutine that was never awaited
    assert ends[-1] == "ran to its end"
    assert {"did not run", "was given up"} <= set(ends[:-1])


@pytest.mark.usefixtures("small_heap")
def test_i12_a_heartbeat_that_is_cancelled_at_any_await(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, code cancels all tasks but its own. The task keeps its lease and its result."""

    async def main(loop: SteppedLoop) -> list[str]:
        provider = open_provider(loop)

        async def one(moment: Moment, number: int) -> str:
            run = Run(provider, f"job-{number}")
            own = asyncio.ensure_future(run.keep_alive())

            def cancel_others() -> None:
                for task in asyncio.all_tasks() - {own, asyncio_main}:
                    task.cancel()

            moment.strike(cancel_others)
            try:
                result = await own
            except asyncio.CancelledError:  # it was the request of its own acquire or release
                result = None
            moment.strike(lambda: None)
            assert run.finished or not run.started, "the task itself was interrupted"
            return "ran to its end" if result == "done" else "did not run"

        asyncio_main = asyncio.current_task()
        return await at_each_await(loop, one)

    ends: list[str] = run_stepped(main, monkeypatch)
    gc.collect()
    assert ends.count("ran to its end") > len(ends) // 2


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("whom", ["the program", "its owner", "all tasks"])
def test_i12_an_elector_that_is_cancelled_at_any_await(whom: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops leading, calls ``on_stopped_leading`` as often as the other elector, and another node leads after a
    lease."""

    async def main(loop: SteppedLoop) -> list[str]:
        provider = open_provider(loop)

        async def one(moment: Moment, number: int) -> str:
            calls: list[str] = []
            elector = AsyncLeaderElector(
                provider,
                f"election-{number}",
                lease_duration=LEASE,
                renew_deadline=2.0,
                retry_period=0.5,
                on_started_leading=lambda: calls.append("started"),
                on_stopped_leading=lambda: calls.append("stopped"),
            )

            async def campaign() -> None:
                async with elector:
                    await elector.wait_until_leader(LEASE)
                    await asyncio.sleep(LEASE)

            own = asyncio.ensure_future(campaign())

            def strike() -> None:
                electors = {task for task in asyncio.all_tasks() if task.get_name().startswith("elector")}
                everything = asyncio.all_tasks() - {asyncio_main}
                for task in {"the program": electors, "its owner": {own}, "all tasks": everything}[whom]:
                    task.cancel()

            moment.strike(strike)
            try:
                await own
                end = "ran to its end"
            except asyncio.CancelledError:
                end = "was given up"
            moment.strike(lambda: None)
            if elector.is_leader():  # the elector was cancelled while it waited for the program to stop
                await elector.stop()
            assert not elector.is_leader()
            await asyncio.sleep(LEASE)
            assert calls == ["started", "stopped"] * (len(calls) // 2)
            assert not await is_held(provider, elector.name)
            lease = await provider.acquire(LockRequest(elector.name, LEASE, holder="next"))
            assert lease is not None
            return end

        asyncio_main = asyncio.current_task()
        return await at_each_await(loop, one)

    ends: list[str] = run_stepped(main, monkeypatch)
    gc.collect()
    assert ends[-1] == "ran to its end"
    assert len(ends) > 20
