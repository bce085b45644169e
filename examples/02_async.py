"""asyncio: the same decorator on ``async def``, and ``hold_async`` around a block.

python examples/02_async.py
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from shedlock_py import async_provider_from_url, configure, scheduler_lock, try_hold_async


@scheduler_lock("sync-feeds", lock_at_most_for="4m")
async def sync_feeds() -> str:
    await asyncio.sleep(0.5)
    return "12 feeds"


async def vacuum(worker: int) -> None:
    async with try_hold_async("vacuum", lock_at_most_for="5m") as lease:
        if lease is None:  # held elsewhere: the block still runs and must check
            print(f"worker {worker}: vacuum is held elsewhere")
            return
        print(f"worker {worker}: vacuuming")
        await asyncio.sleep(0.5)


async def run() -> None:
    # Two calls at once: one call returns its value, the other is skipped and returns None.
    print("sync_feeds:", await asyncio.gather(sync_feeds(), sync_feeds()))
    await asyncio.gather(vacuum(1), vacuum(2))


async def prepare(url: str) -> None:
    provider = async_provider_from_url(url)  # picks aiosqlite, asyncpg, asyncmy, …
    await provider.create_schema()
    configure(async_provider=provider)


async def main(url: str) -> None:
    await prepare(url)
    await run()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(f"sqlite:///{Path(directory) / 'locks.db'}"))
