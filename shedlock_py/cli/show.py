"""``shedlock list`` and ``shedlock show``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from shedlock_py import display
from shedlock_py.cli import tables
from shedlock_py.cli.common import json_option, note, open_store, option, print_json, printable, store_option, warn
from shedlock_py.cli.names import name_argument, prefix_argument, record_or_fail
from shedlock_py.overdue import stuck_names
from shedlock_py.record import LockRecord


@click.command("list")
@prefix_argument
@option("--held", envvar="SHEDLOCK_LIST_HELD", is_flag=True, help="Only those that are held now.")
@store_option
@json_option
def list_(prefix: str, held: bool, store: str | None, as_json: bool) -> None:
    """Show all locks whose names start with PREFIX.

    A terminal of 110 columns or more also shows fencing tokens and fire times. Piped, one lock a line with everything,
    the times in ISO 8601. With --json and run history, also whether its job is stuck, as: shedlock overdue.
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
    """Show all that the store has on the lock NAME.

    Exit code 1: it has nothing.
    """
    with open_store(store) as provider:
        record = record_or_fail(provider, name)
        stuck = stuck_names(provider, [record]) if as_json else None
    if as_json:
        print_json(_to_json(record, stuck))
    else:
        tables.print_columns(_lines(record))
    _warn_of_fire_times(record)


def _lines(record: LockRecord) -> list[tuple[str, str]]:
    demoted, left = display.demoted_leader(record), display.in_words(record.remaining)
    state = f"held, for another {left}" if record.is_held else display.state_of(record)
    if record.is_held and demoted is not None:
        state = f"nobody leads: {demoted} was demoted, an election in {left}"
    pause = record.pause if record.is_paused else None
    paused = []
    if pause is not None:
        state = f"paused, for another {left}"
        paused = [("paused by", printable(pause.by)), ("reason", printable(pause.reason) or display.NOTHING)]
    return [
        ("name", printable(record.name)),
        ("state", state),
        *paused,
        ("holder" if record.is_held else "last holder", printable(record.holder)),
        ("claim id", printable(display.claim_id(record) or display.NOTHING)),
        ("locked by", printable(record.locked_by)),
        ("locked at", f"{_moment(record.locked_at)}, {display.in_words(display.age(record))} ago"),
        ("lock until" if record.is_held else "locked until", _moment(record.lock_until)),
        ("fencing token", display.token_of(record)),
        ("last fire time", _moment(display.fire_time_of(record))),
        ("store's clock", _moment(record.read_at)),
    ]


def _moment(moment: datetime | None) -> str:
    """In UTC as the store has it, and in the time zone of this machine."""
    if moment is None:
        return display.NOTHING
    local, there = display.in_local_zone(moment), f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC"
    return f"{there} ({local:%Y-%m-%d %H:%M:%S %Z})" if local.utcoffset() else there
