"""The store is unreachable at the fire times of a job that several schedulers have.

These fire times run once, late, or emit ``RunMissed``. A run is not lost silently, and does not run twice.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import make_url

from shedlock_py import Event, RunMissed, configure, current_lease, scheduler_lock
from shedlock_py.integrations.apscheduler import ShedLockExecutor
from shedlock_py.testing.proxy import TcpProxy
from tests.faults.checker import Finding, Report
from tests.faults.registry import by_trial, scenario
from tests.support.polling import let_pass, wait_until
from tests.support.stores import Store

EVERY = timedelta(seconds=2)
"""From one fire time to the next."""
NODES = 3
OUTAGES_PER_TRIAL = 2
LONGEST_OUTAGE = 3.5
TIMEOUT = 30.0
Outage = Callable[[], AbstractContextManager[None]]


@scenario(19, "the store is away at the fire time", least=2)
@by_trial
def away_at_the_fire_time(store: Store, seed: int, number: int) -> Report:
    return one_trial(store, seed)


def one_trial(store: Store, seed: int) -> Report:
    report, choice = Report(trials=1), random.Random(seed)
    runs: Counter[datetime] = Counter()
    missed: Counter[datetime] = Counter()
    mutex = threading.Lock()

    def run() -> None:
        lease = current_lease()
        assert lease is not None
        assert lease.fire_time is not None
        with mutex:
            runs[lease.fire_time] += 1

    def note(event: Event) -> None:
        if isinstance(event, RunMissed) and event.fire_time is not None:
            with mutex:
                missed[event.fire_time] += 1

    with ExitStack() as stack:
        proxies, outage = outage_of(store, stack)
        via = [proxy.address for proxy in proxies]
        stack.enter_context(configure(listeners=[note]))
        stack.enter_context(_silence())
        job = scheduler_lock(f"late-{uuid4().hex[:8]}", lock_at_most_for="1s")(run)
        for _ in range(NODES):
            provider = stack.enter_context(store.provider(via, timeout="1s"))
            scheduler = BackgroundScheduler(executors={"default": ShedLockExecutor(provider=provider)}, timezone="UTC")
            scheduler.add_job(job, "cron", second=f"*/{EVERY.seconds}", id="job", misfire_grace_time=30)
            scheduler.start()
            stack.callback(scheduler.shutdown)
        _wait_for_a_run(runs)
        for _ in range(OUTAGES_PER_TRIAL):
            # From shortly before a fire time, or in the middle of its requests, to before or after the next fire time.
            due = max(runs) + 2 * EVERY
            begin = due - timedelta(seconds=choice.choice((choice.uniform(0.0, 1.0), choice.uniform(-0.02, 0.0))))
            let_pass(max(0.0, (begin - datetime.now(UTC)).total_seconds()))
            with outage():
                end = time.monotonic() + choice.uniform(1.0, LONGEST_OUTAGE)
                wait_until(lambda end=end: time.monotonic() >= end, timeout=TIMEOUT, what="the time")  # type: ignore[misc]  # a default binds it now
            report.counts["outage"] += 1
            _wait_for_a_run(runs)
        _wait_for_a_run(runs)
    report.findings += judge(runs, missed)
    report.counts["run"] += runs.total()
    report.counts["fire time missed"] += len([at for at in missed if not runs[at]])
    return report


def _wait_for_a_run(runs: Counter[datetime]) -> None:
    """Wait until a later fire time has run."""
    now = datetime.now(UTC)
    wait_until(lambda: any(at > now for at in [*runs]), timeout=TIMEOUT, what="a run")


def judge(runs: Counter[datetime], missed: Counter[datetime]) -> Iterator[Finding]:
    """Check each fire time from the first run to the last run."""
    first, last = min(runs), max(runs)
    due = {first + EVERY * number for number in range((last - first) // EVERY + 1)}
    for at in sorted(due | set(runs)):
        if runs[at] > 1:
            yield Finding("fire time", "job", f"{at} ran {runs[at]} times", at.timestamp())
        elif not (runs[at] or missed[at]):
            yield Finding("silent loss", "job", f"{at} did not run, and no event says so", at.timestamp())


def outage_of(store: Store, stack: ExitStack) -> tuple[list[TcpProxy], Outage]:
    """Return the proxies for providers, and a context manager that makes the store unreachable."""
    if store.name == "sqlite":
        return [], lambda: _locked(make_url(str(store.where((), is_async=False))).database or "")
    proxies = [stack.enter_context(TcpProxy(address)) for address in store.addresses]

    @contextmanager
    def refused() -> Iterator[None]:
        for proxy in proxies:
            proxy.refuse()
            proxy.cut()
        try:
            yield
        finally:
            for proxy in proxies:
                proxy.accept()

    return proxies, refused


@contextmanager
def _locked(file: str) -> Iterator[None]:
    with closing(sqlite3.connect(file, isolation_level=None, timeout=TIMEOUT)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def _silence() -> Iterator[None]:
    """Keep log lines about the outages off the page of ``make faults``."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
