"""How an application ends: its schedulers are drained and shut down, and its store is closed last."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from shedlock_py.context import running
from shedlock_py.events import logger
from shedlock_py.shutdown import describe


def is_scheduler(item: object) -> bool:
    """Whether ``item`` is a scheduler of APScheduler, which may not be installed."""
    schedulers: Any = sys.modules.get("apscheduler.schedulers.base")
    return schedulers is not None and isinstance(item, schedulers.BaseScheduler)


def stop_item(item: Any) -> Any:
    """Stop a scheduler, whose jobs were waited for, or an elector."""
    if is_scheduler(item):
        return item.shutdown(wait=False) if item.running else None
    return item.shutdown() if hasattr(item, "shutdown") else item.stop()


def drain_schedulers(items: Iterable[Any], seconds: float) -> None:
    """Let the schedulers among ``items`` begin no run, and wait for the runs of all of them, so long at most."""
    schedulers = list(filter(is_scheduler, items))
    if schedulers:
        from shedlock_py.integrations.apscheduler.drain import executors_of, stop_beginning, wait_for_runs

        for scheduler in schedulers:
            stop_beginning(scheduler)
        wait_for_runs(executors_of(*schedulers), seconds)


async def drain_schedulers_async(items: Iterable[Any], seconds: float) -> None:
    """:func:`drain_schedulers` for asyncio."""
    schedulers = list(filter(is_scheduler, items))
    if schedulers:
        from shedlock_py.integrations.apscheduler.drain import executors_of, stop_beginning, wait_for_runs_async

        for scheduler in schedulers:
            stop_beginning(scheduler)
        await wait_for_runs_async(executors_of(*schedulers), seconds)


def warn_of_running(provider: Any) -> bool:
    """Whether guarded tasks of this process still use ``provider``: it must not be closed, and a warning names them."""
    store = getattr(provider, "sync_provider", provider)
    left = [active for active in list(running) if active.owner.is_current() and active.provider is store]
    if left:
        names = ", ".join(sorted({describe(active) for active in left}))
        logger.warning("still running after the drain time, their leases are kept until the process ends: %s", names)
    return bool(left)
