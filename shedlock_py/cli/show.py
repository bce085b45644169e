"""``shedlock list`` and ``shedlock show``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from shedlock_py.cli import tables
from shedlock_py.cli.common import (
    json_option,
    note,
    one_line,
    open_store,
    option,
    print_json,
    printable,
    store_option,
    warn,
)
from shedlock_py.cli.names import name_argument, prefix_argument, record_or_fail
from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.model.overdue import TROUBLES, punctuality, recent_runs, stuck_names
from shedlock_py.model.record import LockRecord
from shedlock_py.operators import display
from shedlock_py.provider import can

MOST_IN_OVERVIEW = 10


@click.command("list")
@prefix_argument
@option("--held", is_flag=True, help="Only locks that are held now.")
@store_option
@json_option
def list_(prefix: str, held: bool, store: str | None, as_json: bool) -> None:
    """List all locks, or those whose names start with PREFIX.

    A wide terminal shows more columns. A pipe gets all columns, one lock per line. With run history, --json includes
    "stuck".
    """
    with open_store(store) as provider:
        records = [record for record in provider.records(prefix) if record.is_held or not held]
        stuck = stuck_names(provider, records) if as_json else None
    if as_json:
        print_json([_to_json(record, stuck) for record in records])
    elif records:
        tables.print_records(records)
    else:
        which = f"{'held ' if held else ''}locks{f' that start with {prefix!r}' if prefix else ''}"
        note(f"no {which} in the store")
    _warn_of_fire_times(*records)


def overview(store: str | None) -> None:
    """Print the locks that matter most: first troubled jobs, then held or paused locks, then the last runs."""
    with open_store(store) as provider:
        records = provider.records()
        try:
            troubles = _troubles(provider, records)
        except ProviderError as error:
            warn(f"the run history cannot be read, so failures are not shown: {one_line(error)}")
            troubles = {}
    if not records:
        note("no locks in the store yet; see: shedlock --help")
        return
    records.sort(key=lambda record: (record.name not in troubles, not record.is_held, -record.locked_at.timestamp()))
    tables.print_records(records[:MOST_IN_OVERVIEW], troubles)
    more = len(records) - MOST_IN_OVERVIEW
    others = f"and {display.counted(more, 'other lock')}: shedlock list; " if more > 0 else ""
    note(f"{others}more: shedlock --help")


def _troubles(provider: Any, records: Sequence[LockRecord]) -> dict[str, str]:
    """Return the troubles of jobs by lock name. Empty without run history."""
    if not can(provider, "runs"):
        return {}
    try:
        runs = recent_runs(provider, [record.name for record in records])
    except ConfigurationError:  # the store is not opened with history
        return {}
    found = {}
    for record in records:
        own = [run for run in runs.get(record.name, ()) if not run.is_pause]
        state, outcome = punctuality(record, own).state, display.outcome_of(own[0], record) if own else ""
        if state in TROUBLES or outcome in display.BAD:
            found[record.name] = state if state in TROUBLES else outcome
    return found


def _to_json(record: LockRecord, stuck: set[str] | None) -> dict[str, Any]:
    return tables.to_json(record) | {"stuck": None if stuck is None else record.name in stuck}


def _warn_of_fire_times(*records: LockRecord) -> None:
    for found in filter(None, map(display.future_fire_time, records)):
        warn("; ".join(found))


@click.command()
@name_argument
@store_option
@json_option
def show(name: str, store: str | None, as_json: bool) -> None:
    """Show one lock. Exits 1 if it does not exist."""
    with open_store(store) as provider:
        record = record_or_fail(provider, name)
        stuck = stuck_names(provider, [record]) if as_json else None
    if as_json:
        print_json(_to_json(record, stuck))
    else:
        tables.print_columns(_lines(record))
    _warn_of_fire_times(record)


def _lines(record: LockRecord) -> list[tuple[str, str]]:
    left = display.in_words(record.remaining)
    state = f"held, for another {left}" if record.is_held else display.state_of(record)
    if display.state_of(record) == "demoted":
        state = f"nobody leads: {display.why_no_leader(record)}"
    pause = record.pause if record.is_paused else None
    paused = []
    if pause is not None:
        state = f"paused, for another {left}"
        paused = [("paused by", printable(pause.by)), ("reason", printable(pause.reason) or display.NOTHING)]
    return [
        ("lock", printable(record.name)),
        ("state", state),
        *paused,
        ("holder" if record.is_held else "last holder", printable(record.holder)),
        ("claim id", printable(display.claim_id(record) or display.NOTHING)),
        (
            "last start" if display.last_start(record) else "since",
            f"{_moment(record.locked_at)}, {display.in_words(display.age(record))} ago",
        ),
        ("until", _moment(record.lock_until)),
        ("token", display.token_of(record)),
        ("fire time", _moment(display.fire_time_of(record))),
        ("store's clock", _moment(record.read_at)),
    ]


def _moment(moment: datetime | None) -> str:
    """Return ``moment`` in UTC and in the time zone of this machine."""
    if moment is None:
        return display.NOTHING
    local, there = display.in_local_zone(moment), f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC"
    return f"{there} ({local:%Y-%m-%d %H:%M:%S %Z})" if local.utcoffset() else there
