"""An application that gets SIGTERM: python -m tests.shutdown.app URL KIND

KIND is where its guarded task runs: "main", "thread", "asyncio", "scheduler"; "default" (without release_on_sigterm),
"chained" (another handler was there), or "stubborn" (a thread that does not end in time).
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from types import FrameType

from apscheduler.schedulers.background import BackgroundScheduler

from shedlock_py import LockProvider, configure, hold, provider_from_url, release_on_sigterm, scheduler_lock

STEP = 0.3
"""Seconds that a task in a thread takes to notice nothing and end."""


@scheduler_lock("job", lock_at_most_for="1h")
def job(seconds: float) -> None:
    print("held", flush=True)
    time.sleep(seconds)
    print("task ended", flush=True)


@scheduler_lock("job", lock_at_most_for="1h")
async def job_async() -> None:
    print("held", flush=True)
    await asyncio.sleep(60)


def main(url: str, kind: str) -> None:
    provider: LockProvider = provider_from_url(url)
    configure(provider=provider)
    if kind != "default":
        signal.signal(signal.SIGTERM, say_it) if kind == "chained" else None
        release_on_sigterm("500ms" if kind == "stubborn" else "20s")
    match kind:
        case "main" | "default" | "chained":
            job(60)
        case "asyncio":
            asyncio.run(job_async())
        case "thread" | "stubborn":
            threading.Thread(target=job, args=(30 if kind == "stubborn" else STEP,), daemon=True).start()
            later()
        case "scheduler":
            scheduler = BackgroundScheduler(timezone="UTC")
            scheduler.add_job(job, "interval", seconds=0.05, args=[STEP], max_instances=1)
            scheduler.start()
            try:
                later()
            finally:
                scheduler.shutdown()


def later() -> None:
    """The main thread of an application, which waits for a signal."""
    try:
        while True:
            time.sleep(0.05)
    finally:
        with hold("late", lock_at_most_for="1h") as lease:
            print("a new task", "runs" if lease else "is skipped", flush=True)


def say_it(number: int, frame: FrameType | None) -> None:
    print("the former handler", flush=True)
    raise SystemExit(7)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
