"""The decorator: a job runs if its lock is free, and is skipped if its lock is held.

python examples/01_decorator.py
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shedlock_py import Executed, configure, provider_from_url, scheduler_lock


@scheduler_lock("nightly-report", lock_at_most_for="30m")
def nightly_report() -> str:
    time.sleep(1)  # the work
    return "42 pages"


@scheduler_lock("invoices-{tenant}", lock_at_most_for="10m", on_skip="skipped")
def send_invoices(tenant: str) -> str:
    time.sleep(0.5)
    return f"sent for {tenant}"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        # In production: a database that all replicas share, such as postgresql://user@host/db.
        provider = provider_from_url(f"sqlite:///{Path(directory) / 'locks.db'}")
        provider.create_schema()  # once; or put the table into your migrations
        with configure(provider):
            # Three "replicas" at the same moment. One replica runs; the others skip at once, without waiting.
            with ThreadPoolExecutor(3) as replicas:
                print(*replicas.map(replica, (1, 2, 3)), sep="\n")

            # Released after the task: the next run is free to start.
            print("afterwards:", nightly_report())

            # A name template has one lock for each tenant.
            with ThreadPoolExecutor(2) as replicas:
                print(*replicas.map(send_invoices, ("acme", "globex")), sep="\n")


def replica(number: int) -> str:
    # Calling nightly_report() returns its value, or None when skipped; attempt() tells the two apart.
    result = nightly_report.attempt()
    if isinstance(result, Executed):
        return f"replica {number}: ran, {result.value} (fencing token {result.lease.fencing_token})"
    return f"replica {number}: skipped, {result.lock_name} is {result.reason}"


if __name__ == "__main__":
    main()
