"""``python -m examples.demo``: exit status 0 if every promise was kept, 1 if one was broken, 2 if it cannot start."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from examples.demo.plan import JOBS
from examples.demo.report import in_words
from examples.demo.servers import PRIVATE, NoServer, private_store
from examples.demo.show import Show
from examples.demo.view import pick_view
from shedlock_py import ShedLockError, provider_from_url
from shedlock_py.page.report import report


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="shedlock-demo-") as directory:
        try:
            with open_store(options, directory) as url:
                store = with_history(url)
                prepare(store)
                with pick_view() as view:
                    show = Show(store, options.seconds, not options.no_lock, view, Path(directory))
                    verdict = show.run()
                write_page(store, options.page)
        except (ShedLockError, NoServer) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted; all that was started is stopped", file=sys.stderr)
            return 130
    print()
    print("\n".join(in_words(verdict)))
    print(f"\nThe page of these jobs, as shedlock page shows it: {options.page}")
    return 1 if verdict.broken else 0


def open_store(options: argparse.Namespace, directory: str) -> AbstractContextManager[str]:
    """Yield the store's URL. A private server runs inside the block."""
    if options.private:
        return private_store(options.private)
    return nullcontext(options.store or f"sqlite:///{directory}/locks.db")


WITHOUT_HISTORY = ("etcd", "dynamodb", "s3", "kubernetes")
"""Schemes of stores without run history."""


def with_history(url: str) -> str:
    """Return the store's URL with run history for the page."""
    if "history=" in url or url.partition(":")[0] in WITHOUT_HISTORY:
        return url
    return f"{url}{'&' if '?' in url else '?'}history=50"


def write_page(store: str, file: Path) -> None:
    """Write the page of the jobs, as ``shedlock page --out`` does."""
    provider = provider_from_url(store)
    file.write_text(report(provider), encoding="utf-8")
    if close := getattr(provider, "close", None):
        close()


def prepare(store: str) -> None:
    """Check that the store replies, and that no interrupted demo still holds the locks."""
    provider = provider_from_url(store)
    provider.create_schema()
    if start_new_quorum := getattr(provider, "start_new_quorum", None):  # only the demo uses these locks
        start_new_quorum()
    for job in JOBS:
        provider.force_release(job.lock_name)
    if close := getattr(provider, "close", None):  # some providers have nothing to close
        close()


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
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        default=Path(tempfile.gettempdir()) / "shedlock-demo.html",
        help="where to write the page of the jobs at the end (%(default)s)",
    )
    parser.add_argument("--no-lock", action="store_true", help="without locks: every replica runs every job")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--store",
        metavar="URL",
        help="where the locks are: postgresql://user@host/db, … (a temporary SQLite file)",
    )
    where.add_argument(
        "--private",
        choices=PRIVATE,
        help="the locks are on a server that lives as long as the demo; `make demo STORE=…` installs what it needs",
    )
    return parser.parse_args(arguments)


def positive(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 3600:
        raise argparse.ArgumentTypeError("must be more than 0 and less than 3600")
    return seconds


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is signal.SIG_DFL:  # which would end us without a clean-up
            signal.signal(ending, signal.default_int_handler)
    sys.exit(main())
