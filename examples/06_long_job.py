"""A job of unknown length with a short lease: kept alive while the job runs, and free soon after a crash.

python examples/06_long_job.py
"""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
import time
from pathlib import Path

from shedlock_py import (
    LeaseLost,
    LockRequest,
    configure,
    current_lease,
    provider_from_url,
    scheduler_lock,
    try_hold,
)

must_stop = threading.Event()


def stop(lost: LeaseLost) -> None:
    """Set a flag that the job checks at each step: a thread cannot be stopped from outside."""
    print(f"   lost ({lost.reason}): telling the job to stop")
    must_stop.set()


@scheduler_lock("reindex", lock_at_most_for="1s", keep_alive=True, on_lost=stop)
def reindex(steps: int) -> str:
    lease = current_lease()
    for step in range(steps):
        if must_stop.is_set():
            return f"stopped at step {step} of {steps}"
        time.sleep(0.1)
    assert lease is not None
    assert lease.is_trusted()
    return f"done, {steps} steps"


def main() -> None:
    logging.basicConfig(stream=sys.stdout, format="   WARNING: %(message)s")
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{Path(directory) / 'locks.db'}"
        provider = provider_from_url(url)
        provider.create_schema()
        with configure(provider):
            print("1. three leases long:", reindex(30))

            # An operator takes the lock by force: the next heartbeat notices.
            threading.Timer(1.0, provider.take_over, [LockRequest("reindex", "1m", holder="operator")]).start()
            print("2. taken over:", reindex(100))

            with try_hold("reindex", keep_alive=True) as lease:
                print("3. now the lock is", "ours" if lease else "the operator's")


if __name__ == "__main__":
    main()
