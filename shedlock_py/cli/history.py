"""``shedlock history`` and ``shedlock overdue``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from shedlock_py.cli import tables
from shedlock_py.cli.common import (
    NO,
    OK,
    able,
    duration_option,
    json_option,
    note,
    open_store,
    option,
    print_json,
    printable,
    store_option,
)
from shedlock_py.cli.names import name_argument, prefix_argument, record_or_fail
from shedlock_py.model.overdue import DOCTOR, TROUBLES, Punctuality, punctuality, recent_runs
from shedlock_py.model.record import LockRecord
from shedlock_py.model.run import MOST_RUNS, Run
from shedlock_py.operators import display
from shedlock_py.provider import LockProvider


def _keeping(provider: LockProvider) -> Any:
    """Return ``provider`` if it can have run history. A provider that is opened without it fails at the first read."""
    return able(provider, "runs", "keeps no run history")


@click.command()
@name_argument
@option(
    "--limit",
    type=click.IntRange(1, MOST_RUNS),
    default=50,
    show_default=True,
    help="How many runs to show, newest first.",
)
@store_option
@json_option
def history(name: str, limit: int, store: str | None, as_json: bool) -> None:
    """Show the last runs of a job, newest first. Exits 1 if its lock does not exist.

    Needs run history, both in the jobs and here: ?history=50 in the URL, or SHEDLOCK_HISTORY=50.
    """
    with open_store(store) as opened:
        provider = _keeping(opened)
        record = record_or_fail(provider, name)
        runs: list[Run] = provider.runs(name, limit)
    if as_json:
        print_json([_run_to_json(run, record) for run in runs])
    elif runs:
        titles = ("Started", "Took", "Outcome", "Holder", "Token", "Fire time", "Error")
        _print_table(titles, [_run_cells(run, record) for run in runs])
    else:
        note(f"no runs of {name!r} in the history")


def _run_cells(run: Run, record: LockRecord) -> tuple[str, ...]:
    duration = display.duration_of(run, record)
    return (
        _moment(run.started, record),
        display.NOTHING if duration is None else display.in_words(duration),
        display.outcome_of(run, record),
        printable(run.holder),
        str(run.fencing_token),
        _moment(run.fire_time, record),
        printable(run.error) if run.error else display.NOTHING,
    )


def _run_to_json(run: Run, record: LockRecord) -> dict[str, Any]:
    return {
        "name": run.name,
        "fencing_token": run.fencing_token,
        "holder": run.holder,
        "locked_by": run.locked_by,
        "started": display.utc(run.started),
        "ended": display.utc(run.ended),
        "duration": None if run.duration is None else run.duration.total_seconds(),
        "outcome": run.outcome,
        "recoveries": run.recoveries,
        "running": display.is_running(run, record),
        "pause": run.is_pause,
        "demotion": run.is_demotion,
        "error": run.error,
        "fire_time": display.utc(run.fire_time),
        "next_fire_time": display.utc(run.next_fire_time),
    }


@click.command()
@prefix_argument
@duration_option(
    "--grace",
    zero=True,
    default="1m",
    help="How late a job may start. If its due time is only estimated from its last runs, at least half of its usual "
    "interval.",
)
@option(
    "--unknown-exit-code",
    type=click.IntRange(0, 255),
    default=0,
    show_default=True,
    metavar="N",
    help="The exit code when no job is overdue or stuck, but some jobs have too few runs to know.",
)
@store_option
@json_option
def overdue(prefix: str, grace: timedelta, unknown_exit_code: int, store: str | None, as_json: bool) -> None:
    """Show jobs that are overdue, and jobs that hang. Exits 1 if such a job exists.

    The last run records when the job is due again: by expected_every, or by its scheduler. Otherwise the job is due
    after the usual time between its last runs, and needs four of them. A job is stuck if it still runs when it is due
    again, or without a due time after three times its usual duration.

    Needs run history, as shedlock history does.
    """
    with open_store(store) as opened:
        provider = _keeping(opened)
        records: list[LockRecord] = provider.records(prefix)
        runs = recent_runs(provider, [record.name for record in records])
    found = [(record, punctuality(record, runs.get(record.name, ()), grace=grace)) for record in records]
    is_bad = any(job.state in TROUBLES for _, job in found)
    unknown = sum(job.state == "unknown" and job.name != DOCTOR for _, job in found)
    if as_json:
        print_json([_job_to_json(job, record) for record, job in found])
    else:
        shown = [(job, record) for record, job in found if job.state in SHOWN]
        shown.sort(key=lambda each: SHOWN.index(each[0].state))
        titles = ("Lock", "State", "Last start", "Due", "Late", "By")
        if shown:
            _print_table(titles, [_job_cells(job, record) for job, record in shown])
        if unknown or not shown:
            verdict = "" if is_bad else "no job is overdue: "
            seldom = f", {unknown} of them with too few runs to know" if unknown else ""
            note(f"{verdict}{display.counted(len(found), 'lock')}{seldom}")
    sys.exit(NO if is_bad else unknown_exit_code if unknown else OK)


SHOWN = (*TROUBLES, "paused")
BASES = {
    "next_fire_time": "planned",
    "cadence": "usual gap",
    "duration": "usual duration",
    None: display.NOTHING,
}


def _job_cells(job: Punctuality, record: LockRecord) -> tuple[str, ...]:
    return (
        printable(job.name),
        job.state,
        _moment(job.last_started, record),
        _moment(job.due, record),
        display.NOTHING if job.due is None else display.in_words(record.read_at - job.due),
        display.pause_in_words(record, _moment(record.lock_until, record)) if record.is_paused else BASES[job.basis],
    )


def _job_to_json(job: Punctuality, record: LockRecord) -> dict[str, Any]:
    return {
        "name": job.name,
        "state": job.state,
        "last_started": display.utc(job.last_started),
        "due": display.utc(job.due),
        "basis": job.basis,
        "late": None if job.due is None else max((record.read_at - job.due).total_seconds(), 0.0),
        **{key: value for key, value in tables.to_json(record).items() if key in ("paused_by", "pause_reason")},
        "paused_until": display.utc(record.lock_until) if record.is_paused else None,
    }


def _moment(moment: datetime | None, record: LockRecord) -> str:
    """Return ``moment`` as local text. A terminal shows it without the zone, which is this machine's."""
    is_short = tables.is_on_terminal()
    return display.local_time(moment, record.read_at) if is_short else display.local_iso(moment)


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on a terminal. Elsewhere print one row per line, however long."""
    if tables.is_on_terminal():
        out = tables.console()
        out.print(tables.table(titles, rows, out.width))
    else:
        tables.print_columns([[title.upper().replace(" ", "_") for title in titles], *rows])
