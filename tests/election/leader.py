"""A leader that gets a signal: python -m tests.election.leader URL KIND

KIND: "threads" (a LeaderElector), "asyncio" (an AsyncLeaderElector), "blocking" (``lead`` with a BlockingScheduler),
"asyncio-scheduler" (``lead`` with an AsyncIOScheduler and an AsyncLeaderElector).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time

from shedlock_py import AsyncLeaderElector, LeaderElector, provider_from_url, release_on_sigterm
from tests.election.electors import LONG


def main(url: str, kind: str) -> None:
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
    release_on_sigterm()
    if kind.startswith("asyncio"):
        asyncio.run(lead_async(url, kind))
        return
    elector = LeaderElector(provider_from_url(url), "election", **LONG)
    if kind == "blocking":
        from apscheduler.events import EVENT_SCHEDULER_RESUMED
        from apscheduler.schedulers.blocking import BlockingScheduler

        from shedlock_py.integrations.apscheduler import lead

        scheduler = BlockingScheduler(timezone="UTC")
        scheduler.add_listener(report, EVENT_SCHEDULER_RESUMED)
        with lead(scheduler, elector):
            pass
    else:
        with elector:
            elector.wait_until_leader()
            report()
            while True:  # short waits: a signal just before a wait is handled after it
                time.sleep(0.05)


async def lead_async(url: str, kind: str) -> None:
    leads = asyncio.Event()
    elector = AsyncLeaderElector(url, "election", on_started_leading=leads.set, **LONG)
    if kind == "asyncio-scheduler":
        from apscheduler.schedulers.asyncio import AsyncIOScheduler

        from shedlock_py.integrations.apscheduler import lead

        async with lead(AsyncIOScheduler(timezone="UTC"), elector):
            await wait_for_the_signal(leads)
    else:
        async with elector:
            await wait_for_the_signal(leads)


async def wait_for_the_signal(leads: asyncio.Event) -> None:
    await leads.wait()  # a signal before the callback returns leaves the lease to expire
    report()
    while True:  # noqa: ASYNC110 (in slices, as above)
        await asyncio.sleep(0.05)


def report(*_: object) -> None:
    print("leads", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
