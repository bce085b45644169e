"""``node.py`` on asyncio: python -m tests.election.async_node URL LOG HOLDER OPTIONS NAME...

Its electors share an event loop in a thread of its own; their questions are asked and written down outside of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from shedlock_py import AsyncLeaderElector, async_provider_from_url
from tests.election.node import DURATIONS, PAUSE


def main(url: str, log: str, holder: str, options: dict[str, Any], names: list[str]) -> None:
    logging.disable(logging.WARNING)  # changes of leader are in the log
    electors: dict[str, AsyncLeaderElector] = {}
    have_started = threading.Event()

    async def live() -> None:
        provider = async_provider_from_url(url)
        for name in names:
            electors[name] = AsyncLeaderElector(provider, name, holder=holder, **{**DURATIONS, **options})
            await electors[name].start()
        have_started.set()
        await obey(electors)

    living = threading.Thread(target=lambda: asyncio.run(live()))
    living.start()
    have_started.wait()
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    print("ready", flush=True)
    while living.is_alive():
        before = time.monotonic()
        leads = [f"{name}={elector.term}" for name, elector in electors.items() if elector.is_leader()]
        line = " ".join([f"{before:.6f}", f"{time.monotonic():.6f}", *leads])
        os.write(file, f"{line}\n".encode())
        time.sleep(PAUSE)


async def obey(electors: dict[str, AsyncLeaderElector]) -> None:
    async def each(wish: Callable[[AsyncLeaderElector], Awaitable[object]]) -> None:
        await asyncio.gather(*(wish(elector) for elector in electors.values()))

    while line := await asyncio.to_thread(sys.stdin.readline):
        match line.split():
            case ["take_over"]:
                await each(lambda elector: elector.take_over("30s"))
            case ["demote", cooldown]:
                await each(lambda elector: elector.demote(cooldown))
        print("done", line.strip(), flush=True)
    await each(lambda elector: elector.stop())
    print("stopped", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), sys.argv[5:])
