"""``shedlock history`` and ``shedlock overdue``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from shedlock_py import display
from shedlock_py.cli import tables
from shedlock_py.cli.common import (
    NO,
    OK,
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
from shedlock_py.errors import ConfigurationError
from shedlock_py.history import MOST_RUNS, Run
from shedlock_py.overdue import DOCTOR, TROUBLES, Punctuality, punctuality, recent_runs
from shedlock_py.provider import LockProvider, can
from shedlock_py.record import LockRecord

STYLES = {
    "ok": "green", "running": "green", "failed": "red", "cancelled": "magenta", "lost": "red", "vanished": "red",
    "paused": "yellow", "demoted": "magenta", "overdue": "red", "stuck": "red", "on_time": "green",
}  # fmt: skip
"""Colours that are readable on white as on black."""


def _keeping(provider: LockProvider) -> Any:
    """``provider``, if it has run history at all; one that is not opened with it says so when it is read."""
    if not can(provider, "runs"):
        raise ConfigurationError(f"{provider!r} keeps no run history: it has no runs()")
    return provider


@click.command()
@name_argument
@option(
    "--limit",
    envvar="SHEDLOCK_HISTORY_LIMIT",
    type=click.IntRange(1, MOST_RUNS),
    default=50,
    show_default=True,
    help="How many runs, the newest first.",
)
@store_option
@json_option
def history(name: str, limit: int, store: str | None, as_json: bool) -> None:
    """Show the last runs of the lock NAME, or the last terms of an election, the newest first.

    The store has them if the jobs open it with history: ?history=50 in their URL, or SHEDLOCK_HISTORY=50. So does this
    command. A pause is in the list as well.

    Exit code 1: the store has no such lock.
    """
    with open_store(store) as opened:
        provider = _keeping(opened)
        record = record_or_fail(provider, name)
        runs: list[Run] = provider.runs(name, limit)
    if as_json:
        print_json([_run_to_json(run, record) for run in runs])
    elif runs:
        titles = ("Started", "Duration", "Outcome", "Holder", "Token", "Fire time", "Error")
        _print_table(titles, [_run_cells(run, record) for run in runs], styled=2)
    else:
        note(f"no runs of {name!r} in the history")


def _run_cells(run: Run, record: LockRecord) -> tuple[str, ...]:
    duration = display.duration_of(run, record)
    return (
        display.local_iso(run.started),
        display.NOTHING if duration is None else display.in_words(duration),
        display.outcome_of(run, record),
        printable(run.holder),
        str(run.fencing_token),
        display.local_iso(run.fire_time),
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
    envvar="SHEDLOCK_OVERDUE_GRACE",
    zero=True,
    default="1m",
    help="How late a job may start. Where only the times of its last runs say when it is due: half of the usual time "
    "between two, if that is longer.",
)
@option(
    "--unknown-exit-code",
    envvar="SHEDLOCK_UNKNOWN_EXIT_CODE",
    type=click.IntRange(0, 255),
    default=0,
    show_default=True,
    metavar="N",
    help="The exit code when no job is overdue or stuck, but some have too few runs to know.",
)
@store_option
@json_option
def overdue(prefix: str, grace: timedelta, unknown_exit_code: int, store: str | None, as_json: bool) -> None:
    """Show the jobs that have not started when they should, or that hang, of the locks whose names start with PREFIX.

    A job is due when its last run said that the next one would start: from expected_every of its lock, or from its
    scheduler (under APScheduler). Otherwise after the median time between its last ten runs (four at
    least). One that is paused is not overdue; paused ones are shown. With --json all are.

    A job that still runs when its next run is due is stuck. Where nothing says when that is: after three times the
    median duration of its last runs (three at least that ended well).

    Needs run history, as: shedlock history.

    Exit code 1: a job is overdue or stuck.
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
        titles = ("Lock", "State", "Last started", "Due", "Late", "By")
        if shown:
            _print_table(titles, [_job_cells(job, record) for job, record in shown], styled=1)
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
        display.local_iso(job.last_started),
        display.local_iso(job.due),
        display.NOTHING if job.due is None else display.in_words(record.read_at - job.due),
        printable(display.pause_in_words(record)) if record.is_paused else BASES[job.basis],
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


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, styled: int) -> None:
    """Print a table on a terminal; elsewhere one row a line, however long.

    :param styled: the number of the column that has a colour of :data:`STYLES`.
    """
    if not tables.is_on_terminal():
        tables.print_columns([[title.upper().replace(" ", "_") for title in titles], *rows])
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        cells = [Text(cell) for cell in row]
        cells[styled].stylize(STYLES.get(row[styled], ""))
        table.add_row(*cells)
    tables.console().print(table)
