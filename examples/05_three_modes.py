"""Three ways to hold a lock: until the task is done, for the whole period, and for as long as one holder renews.

python examples/05_three_modes.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from shedlock_py import LockProvider, Skipped, configure, extend_lock, provider_from_url, scheduler_lock, try_hold


# 1. Until the task is done, for tasks that may run again at once.
@scheduler_lock("import", lock_at_most_for="10m")
def import_files() -> str:
    return "imported"


# 2. For the whole period, for tasks that must not run twice per period, whoever calls them: the lock is kept after the
# task, until lock_at_least_for is over. (Under APScheduler each fire time runs once without such a duration.)
@scheduler_lock("daily-mail", lock_at_most_for="23h", lock_at_least_for="23h")
def daily_mail() -> str:
    return "sent"


# 3. As long as the holder renews, for tasks of unknown length: a short lease, so that a crash is noticed soon, and an
# extension at each step. extend_lock raises LeaseLostError if the lease was lost: better to stop than to continue.
@scheduler_lock("reindex", lock_at_most_for="1s")
def reindex() -> str:
    for _ in range(4):
        time.sleep(0.4)  # a step; all steps together take longer than the lease
        extend_lock("1s")
    return "reindexed"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        provider = provider_from_url(f"sqlite:///{Path(directory) / 'locks.db'}")
        provider.create_schema()
        with configure(provider):
            print("1. import:", import_files(), "and again:", import_files())
            show(provider, "import")

            print("2. daily-mail:", daily_mail(), "and again:", say(daily_mail.attempt()))
            show(provider, "daily-mail")

            print("3. reindex:", reindex())
            show(provider, "reindex")

            # The same in a block:
            with try_hold("reindex", lock_at_most_for="1s") as lease:
                if lease:
                    print("   held as a block, fencing token", lease.fencing_token)


def say(result: object) -> str:
    return f"skipped ({result.reason})" if isinstance(result, Skipped) else "ran"


def show(provider: LockProvider, name: str) -> None:
    record = provider.record(name)
    assert record is not None
    print(f"   {name} is", f"held for {record.remaining.total_seconds():.0f} s more" if record.is_held else "free")


if __name__ == "__main__":
    main()
