"""One node of several elections, as a process: python -m tests.election.node LOG HOLDER URL KIND OPTIONS NAME...

Every few milliseconds it writes its elections to LOG as a line ``before after name=term …``: the moments before and
after the check, on the clock that a machine's processes share. KIND is "threads" or "asyncio". OPTIONS are the
electors' options in JSON. Its standard input has commands.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

from shedlock_py import LeaderElector, async_provider_from_url, provider_from_url
from tests.election.electors import Elector, LoopElector
from tests.support.loop_threads import EventLoopThread

PAUSE = 0.004
DURATIONS = {"lease_duration": "3s", "renew_deadline": "2s", "retry_period": "500ms"}


def main(log: str, holder: str, url: str, kind: str, options: dict[str, Any], names: list[str]) -> None:
    logging.disable(logging.WARNING)  # the log has the changes of leader
    options = {**DURATIONS, **options, "holder": holder}
    electors: dict[str, Elector] = {}
    with ExitStack() as stack:
        if kind == "asyncio":
            loop = stack.enter_context(closing(EventLoopThread()))
            async_provider = loop.call(lambda: async_provider_from_url(url))
            electors.update((name, LoopElector(loop, async_provider, name, **options)) for name in names)
        else:
            provider = provider_from_url(url)
            electors.update((name, LeaderElector(provider, name, **options)) for name in names)
        for elector in electors.values():
            elector.start()
        commands = threading.Thread(target=run_commands, args=(electors,))
        commands.start()
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        print("ready", flush=True)
        while commands.is_alive():
            before = time.monotonic()
            leads = [f"{name}={elector.term}" for name, elector in electors.items() if elector.is_leader()]
            line = " ".join([f"{before:.6f}", f"{time.monotonic():.6f}", *leads])
            os.write(file, f"{line}\n".encode())
            time.sleep(PAUSE)


def run_commands(electors: dict[str, Elector]) -> None:
    def each(command: Callable[[Elector], object]) -> None:
        threads = [threading.Thread(target=command, args=(elector,)) for elector in electors.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    for line in sys.stdin:
        match line.split():
            case ["take_over"]:
                each(lambda elector: elector.take_over("30s"))
            case ["demote", cooldown]:
                each(lambda elector: elector.demote(cooldown))
        print("done", line.strip(), flush=True)
    each(lambda elector: elector.stop())
    print("stopped", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], json.loads(sys.argv[5]), sys.argv[6:])
