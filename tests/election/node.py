"""One node of several elections, as a process: python -m tests.election.node URL LOG HOLDER OPTIONS NAME...

Says in LOG, every few milliseconds, in which elections it leads; a line is ``before after name=term …``, with the
moments around the questions, on the clock that all processes of a machine share. OPTIONS are the electors', in JSON.
Obeys its standard input.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from shedlock_py import LeaderElector, provider_from_url

PAUSE = 0.004
DURATIONS = {"lease_duration": "3s", "renew_deadline": "2s", "retry_period": "500ms"}


def main(url: str, log: str, holder: str, options: dict[str, Any], names: list[str]) -> None:
    logging.disable(logging.WARNING)  # changes of leader are in the log
    provider = provider_from_url(url)
    electors = {name: LeaderElector(provider, name, holder=holder, **{**DURATIONS, **options}) for name in names}
    for elector in electors.values():
        elector.start()
    obeyed = threading.Thread(target=obey, args=(electors,))
    obeyed.start()
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    print("ready", flush=True)
    while obeyed.is_alive():
        before = time.monotonic()
        leads = [f"{name}={elector.term}" for name, elector in electors.items() if elector.is_leader()]
        line = " ".join([f"{before:.6f}", f"{time.monotonic():.6f}", *leads])
        os.write(file, f"{line}\n".encode())
        time.sleep(PAUSE)


def obey(electors: dict[str, LeaderElector]) -> None:
    def each(wish: Callable[[LeaderElector], object]) -> None:
        threads = [threading.Thread(target=wish, args=(elector,)) for elector in electors.values()]
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
    main(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), sys.argv[5:])
