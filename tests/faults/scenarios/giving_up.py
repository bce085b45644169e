"""Callers give up in the middle of an acquire, as in a rolling deploy. Another replica runs the fire time at once."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from shedlock_py import LockRequest, ProviderError
from tests.faults.checker import Finding, Report
from tests.faults.registry import by_trial, scenario
from tests.support.stores import Store, open_provider

CALLERS = 20
"""Callers that give up, in each trial."""
AT_LEAST = "1m"
"""The minimum hold, which the undo must not keep."""
TIMEOUT = 15.0
"""Seconds until the undo in the background is done: much less than the minimum hold."""


@scenario(17, "callers that give up", kinds=("async",), least=3)
@by_trial
def giving_up(store: Store, seed: int, number: int) -> Report:
    return run_trial(store, seed)


def run_trial(store: Store, seed: int, **options: bool) -> Report:
    return asyncio.run(_trial(store, seed, **options))


async def _trial(store: Store, seed: int, *, undoes: bool = True) -> Report:
    """Cancel each caller at a random moment. It must give back any lease that was granted before."""
    report, randomness = Report(trials=1), random.Random(seed)
    providers: list[Any] = [open_provider(**store.arguments()) for _ in range(2)]
    first, second = providers
    if not undoes:
        first.undo = first.release  # the control: without an undo, a cancelled acquire only released
    try:
        fire_time = datetime.now(UTC) - timedelta(hours=1)
        for _ in range(CALLERS):
            name = f"job-{uuid4().hex[:8]}"
            request = LockRequest(name, "10m", AT_LEAST, fire_time=fire_time)
            await first.record(name)  # connected
            report.counts[await _give_up(first, request, randomness)] += 1
            if not await _is_granted(second, request):
                text = f"nobody runs {name} at {fire_time}: a caller that gave up has used it"
                report.findings.append(Finding("fire time", name, text, 0.0))
    finally:
        for provider in providers:
            await provider.close()
    return report


async def _give_up(provider: Any, request: LockRequest, randomness: random.Random) -> str:
    task = asyncio.ensure_future(provider.acquire(request))
    await asyncio.sleep(randomness.uniform(0.0, 0.004))
    task.cancel()
    await asyncio.wait({task})
    if task.cancelled():
        return "acquire cancelled"
    lease = task.result()
    assert lease is not None
    await provider.undo(lease)
    return "acquire undone"


async def _is_granted(provider: Any, request: LockRequest) -> bool:
    until = asyncio.get_running_loop().time() + TIMEOUT
    while asyncio.get_running_loop().time() < until:
        try:
            lease = await provider.acquire(request)
        except ProviderError:  # a quorum whose servers are divided
            lease = None
        if lease is not None:
            await provider.undo(lease)
            return True
        await asyncio.sleep(0.02)
    return False
