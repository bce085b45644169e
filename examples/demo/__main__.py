"""``python -m examples.demo``: exit status 0 if every promise was kept, 1 if one was broken, 2 if it cannot start."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from examples.demo.plan import JOBS
from examples.demo.report import in_words
from examples.demo.show import Show
from examples.demo.view import pick_view
from shedlock_py import ShedLockError, provider_from_url


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="shedlock-demo-") as directory:
        store = options.store or f"sqlite:///{directory}/locks.db"
        try:
            prepare(store)
            with pick_view() as view:
                show = Show(store, options.seconds, not options.no_lock, view, Path(directory))
                verdict = show.run()
        except ShedLockError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted; the replicas are stopped", file=sys.stderr)
            return 130
    print()
    print("\n".join(in_words(verdict)))
    return 1 if verdict.broken else 0


def prepare(store: str) -> None:
    """Make sure that the store answers, and that no interrupted demo still holds the locks."""
    provider = provider_from_url(store)
    provider.create_schema()
    for job in JOBS:
        provider.force_release(job.lock_name)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Three replicas of one app run the same two cron jobs; each job runs once. In the middle one "
        "replica is killed while it runs the slow job, and another takes over. Exit status 1 if a promise was broken.",
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=15,
        help="how long, at least (15); the kill comes after a third of it",
    )
    parser.add_argument("--no-lock", action="store_true", help="without locks: every replica runs every job")
    parser.add_argument(
        "--store",
        metavar="URL",
        help="where the locks are: postgresql://user@host/db, … (a temporary SQLite file)",
    )
    return parser.parse_args(arguments)


def positive(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 3600:
        raise argparse.ArgumentTypeError("must be more than 0 and less than 3600")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
