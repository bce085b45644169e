"""Time zones of servers and workers, when local clocks are set forward or back, and at the end of a year.

``python -m tests.faults.scenarios.time_zones CONFIG`` runs a replica of an app with a cron job; see :func:`main`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import text

from shedlock_py import scheduler_lock
from shedlock_py.integrations.apscheduler import EVENT_JOB_SKIPPED, ShedLockExecutor
from tests.faults.checker import Finding, Report, check
from tests.faults.clocked import clocked, worker_clocks
from tests.faults.clocks import Clock, offset_to
from tests.faults.fleet import Fleet, ForkServer, LineProcess
from tests.faults.history import monotonic
from tests.faults.registry import OF_ANY_CLOCK, Budget, scenario
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support.polling import wait_until
from tests.support.stores import Store, open_provider

ZONES = ("America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia")
BEHAVIOUR = Behaviour(at_most=0.8, at_least=0.05, work=(0.0, 0.2), pause=(0.0, 0.03), extends=0.4, keeps_alive=0.3)
BEFORE = 2.0
"""Seconds before the moment when workers and replicas begin."""
SKEWS = (0.0, 0.08, -0.08)
"""Seconds by which the clocks of replicas differ."""
TIMEOUT = 60.0
"""Seconds, on a busy machine."""


@dataclass(frozen=True)
class Moment:
    zone: str
    """The server's."""
    at: datetime
    what: str


def _utc(*fields: int) -> datetime:
    return datetime(*fields, tzinfo=UTC)  # type: ignore[misc, arg-type]  # year, month, …


GAP, FOLD = "clocks set forward", "clocks set back"
MOMENTS = (
    Moment("America/New_York", _utc(2027, 3, 14, 7), GAP),
    Moment("America/New_York", _utc(2027, 11, 7, 6), FOLD),
    # Read as local time of New York, the UTC time does not exist then, or exists twice.
    Moment("America/New_York", _utc(2027, 3, 14, 2), "a local time in UTC that does not exist"),
    Moment("America/New_York", _utc(2027, 11, 7, 1), "a local time in UTC that exists twice"),
    Moment("Australia/Lord_Howe", _utc(2027, 4, 3, 15), FOLD),  # by half an hour
    Moment("Australia/Lord_Howe", _utc(2027, 10, 2, 15, 30), GAP),
    Moment("Pacific/Apia", _utc(2011, 12, 30, 10), GAP),  # by a whole day: the date line was moved
    Moment("Asia/Kathmandu", _utc(2027, 12, 31, 18, 15), "the year's end"),
    Moment("Asia/Kathmandu", _utc(2028, 1, 1), "the year's end in UTC"),
    Moment("Pacific/Apia", _utc(2028, 2, 29), "a leap day"),
)
CHANGES = tuple(moment for moment in MOMENTS if moment.what in (GAP, FOLD))


@scenario(7, "time zones around clock changes", stores=OF_ANY_CLOCK, weight=1.5, least=3)
def time_zones(store: Store, budget: Budget, seed: int) -> Report:
    """Server and workers live in awkward zones, and pass a moment at which local time jumps. Nothing changes."""
    with worker_clocks(len(ZONES), *({"TZ": zone} for zone in ZONES)) as clocks:
        return budget.total(lambda trial: pass_moment(store, clocks, MOMENTS[(seed + trial) % len(MOMENTS)], trial))


def pass_moment(store: Store, clocks: Sequence[tuple[Clock, ForkServer]], moment: Moment, trial: int) -> Report:
    """Run a trial: a worker for each clock, from shortly before the moment until shortly after it."""
    with clocked(store.name, is_async=store.is_async, environment={"TZ": moment.zone}) as ours:
        start = moment.at - timedelta(seconds=BEFORE)
        began = time.monotonic()
        offset = offset_to(start)
        for clock in [*ours.clocks, *(clock for clock, _ in clocks)]:
            clock.set(offset)
        _set_zone(ours.store, moment.zone, trial)
        with Fleet(ours.store, size=0, names=2, behaviour=BEHAVIOUR, seed=trial, fork_server=clocks[0][1]) as fleet:
            for _, fork_server in clocks:
                fleet.add(fork_server=fork_server)
            fleet.wait(lambda: time.monotonic() > began + BEFORE, "the moment over")
            for _ in range(3):
                fleet.wait_for_each_name()
            report = check(fleet.end(), rules_of(store))
        for _, fork_server in clocks:
            assert not fork_server.complaints(), fork_server.complaints()
        ended = start + timedelta(seconds=time.monotonic() - began)
        report.findings += _wrong_times(ours.store, start, ended, moment)
    return report


def _wrong_times(store: Store, begin: datetime, end: datetime, moment: Moment) -> Iterator[Finding]:
    with closing(store.open()) as provider:
        for record in provider.records():
            if not begin - timedelta(seconds=0.1) <= record.locked_at <= end + timedelta(seconds=0.1):
                text = f"{moment.what}, {moment.zone}: locked at {record.locked_at} between {begin} and {end}"
                yield Finding("time", record.name, text, 0.0)


def _set_zone(store: Store, zone: str, trial: int) -> None:
    """Set the zone for every session, as administrators do. The server itself has it from its environment."""
    if store.name not in ("postgres", "mariadb", "mysql"):
        return
    with store.servers[0].connect() as connection:
        if store.name != "postgres":
            connection.execute(text("SET GLOBAL time_zone = 'SYSTEM'"))
        elif trial % 2:
            connection.execute(text(f"ALTER ROLE shedlock SET timezone = '{zone}'"))
        else:
            connection.execute(text(f"ALTER DATABASE shedlock SET timezone = '{zone}'"))


@scenario(7, "cron around clock changes", stores=OF_ANY_CLOCK, kinds=("sync",), least=2)
def cron(store: Store, budget: Budget, seed: int) -> Report:
    """Three replicas have a job every second of a zone's local time. Each of its fire times has one run."""
    return budget.total(lambda trial: _cron(store, CHANGES[(seed + trial) % len(CHANGES)]))


def _cron(store: Store, moment: Moment) -> Report:
    start = moment.at - timedelta(seconds=BEFORE)
    last = moment.at + timedelta(seconds=1)
    # Replicas that share a file share a clock.
    skews = SKEWS if store.addresses else (0.0,) * len(SKEWS)
    with clocked(store.name, environment={"TZ": moment.zone}) as ours, ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shedlock-cron-")))
        clocks = [stack.enter_context(Clock()) for _ in skews]
        replicas = [
            stack.enter_context(
                closing(_Replica(ours.store, moment.zone, {**clock.environment, "TZ": zone}, directory / zone[:4]))
            )
            for clock, zone in zip(clocks, ZONES, strict=False)
        ]
        for replica in replicas:
            wait_until(lambda replica=replica: replica.is_ready, timeout=TIMEOUT, what="a replica ready")  # type: ignore[misc]  # bound
        offset = offset_to(start)
        for clock, skew in zip([*ours.clocks, *clocks], [*(0.0 for _ in ours.clocks), *skews], strict=True):
            clock.set(offset + skew)
        for replica in replicas:
            replica.process.write("go")
        wait_until(
            lambda: all(last in [run.fire_time for run in replica.runs()] for replica in replicas),
            timeout=TIMEOUT,
            what=f"each replica has fired at {last}",
        )
        for replica in replicas:
            replica.end()
        return _judged([run for replica in replicas for run in replica.runs()], moment, last)


@dataclass(frozen=True)
class Run:
    fire_time: datetime
    reason: str
    """The reason for a skip, or "ran"."""
    at: float
    """The time by the machine's clock."""


def _judged(runs: Sequence[Run], moment: Moment, last: datetime) -> Report:
    report = Report(trials=1)
    seen = {run.fire_time for run in runs if run.fire_time <= last}
    report.counts["run"] = sum(run.reason == "ran" for run in runs if run.fire_time <= last)
    report.counts["run skipped"] = sum(run.reason != "ran" for run in runs if run.fire_time <= last)
    texts = []
    for fire_time in sorted(seen):
        number = sum(run.reason == "ran" for run in runs if run.fire_time == fire_time)
        if number > 1 or (number == 0 and not _was_late(fire_time, runs)):
            texts.append(f"{number} runs of {fire_time}")
    if min(seen) >= moment.at:
        texts.append("nobody fired before it")
    for seconds in (0, 1):
        if moment.at + timedelta(seconds=seconds) not in seen:
            texts.append(f"nobody fired {seconds} s after it")
    report.findings += [Finding("fire time", "cron", f"{moment.what}, {moment.zone}: {text}", 0.0) for text in texts]
    return report


def _was_late(fire_time: datetime, runs: Sequence[Run]) -> bool:
    """Whether a busy machine explains the missing run: the run before went on, or the run after was already over."""
    skips = [run for run in runs if run.fire_time == fire_time and run.reason != "ran"]
    later = [run.at for run in runs if run.fire_time > fire_time and run.reason == "ran"]
    return any(run.reason == "held" or min(later, default=run.at) < run.at for run in skips)


class _Replica:
    def __init__(self, store: Store, zone: str, environment: dict[str, str], output: Path) -> None:
        self._output = output
        config = json.dumps({**store.arguments(), "zone": zone})
        with output.open("w") as out:
            self.process = LineProcess(__name__, config, environment=environment, stdout=out)

    def close(self) -> None:
        self.process.close()

    @property
    def is_ready(self) -> bool:
        return self._output.read_text() == "ready\n"

    def runs(self) -> list[Run]:
        whole_lines = self._output.read_text().split("\n")[:-1]
        words = [line.split() for line in whole_lines if line != "ready"]
        return [Run(datetime.fromisoformat(fire_time), reason, float(at)) for fire_time, reason, at in words]

    def end(self) -> None:
        self.process.communicate(timeout=TIMEOUT)
        assert self.process.returncode == 0, "a replica failed"


# The replica


@scheduler_lock("cron", lock_at_most_for="1m")
def cron_job() -> None: ...


def main(config: dict[str, Any]) -> None:
    """Run a cron job every second in the zone of ``config``.

    ``config`` is ``Store.arguments`` plus ``"zone"``. Starts the scheduler, prints "ready", waits for a line, adds the
    job, and writes "fire-time reason seconds" for each run and each skip, until its standard input ends.
    """
    zone = config.pop("zone")
    provider: Any = open_provider(**config)
    executor = ShedLockExecutor(None, provider)
    scheduler = BackgroundScheduler(executors={"default": executor}, timezone=zone)
    mutex = threading.Lock()

    def report(event: Any) -> None:
        reason = event.reason if event.code == EVENT_JOB_SKIPPED else "ran"
        with mutex:
            print(event.scheduled_run_time.astimezone(UTC).isoformat(), reason, monotonic(), flush=True)

    scheduler.add_listener(report, EVENT_JOB_EXECUTED | EVENT_JOB_SKIPPED)
    scheduler.start()
    provider.record("cron")  # the slow first steps are done: even on a busy machine, the job fires before the moment
    print("ready", flush=True)
    sys.stdin.readline()
    options: dict[str, Any] = {"misfire_grace_time": None, "max_instances": 5, "coalesce": False}
    scheduler.add_job(cron_job, "cron", id="cron", second="*", **options)
    sys.stdin.read()
    scheduler.shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
