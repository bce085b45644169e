"""Lock records for people and for programs.

What is printed comes from the store, where others may have written anything: nothing in it is taken for markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Any

import click
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from shedlock_py.cli.common import console, printable
from shedlock_py.cli.periods import LONGEST_LEAD
from shedlock_py.election.demotion import Demotion
from shedlock_py.record import LockRecord

WIDE = 110
"""Columns of a terminal from which on a table has everything."""

NOTHING = "-"


# Pieces of text


def in_words(duration: timedelta) -> str:
    """``duration`` in its two largest units: 3d 4h, 9m 58s, 4.2s."""
    seconds = duration.total_seconds()
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        number, whole = divmod(whole, size)
        if number or parts:
            parts.append(f"{number}{unit}")
    shown = parts[:2]
    return shown[0] if len(shown) == 2 and shown[1][:-1] == "0" else " ".join(shown)


def age(record: LockRecord) -> timedelta:
    """How long ago it was acquired, by the store's clock."""
    return max(record.read_at - record.locked_at, timedelta(0))


def local_time(moment: datetime, now: datetime) -> str:
    """In this machine's time zone: the time of day if it is the day of ``now``, else the date and the time."""
    local = in_local_zone(moment)
    return f"{local:%H:%M:%S}" if local.date() == now.astimezone().date() else f"{local:%Y-%m-%d %H:%M}"


def demoted_leader(record: LockRecord) -> str | None:
    """Who was demoted, if the record is held by nobody so that the demoted leader notices."""
    demotion = Demotion.from_record(record)
    return None if demotion is None else demotion.leader


def holder_of(record: LockRecord) -> str:
    demoted = demoted_leader(record)
    return printable(record.holder if demoted is None else f"(demoted: {demoted})")


def future_fire_time(record: LockRecord) -> tuple[str, str] | None:
    """What is wrong with a last fire time in the future of the store's clock, and the cure; None if it is not.

    A period of ``--once-per`` is granted up to half a minute before the moment that names it.
    """
    fire_time = record.last_fire_time
    if fire_time is None or fire_time <= record.read_at + LONGEST_LEAD:
        return None
    ahead = in_words(fire_time - record.read_at)
    wrong = (
        f"lock {record.name!r}: its last fire time, {local_iso(fire_time)}, is {ahead} in the future: a replica's "
        f"clock was wrong, and runs that are due before it are skipped"
    )
    return wrong, f"forget it with: shedlock release {quote(record.name)} --forget-fire-time"


def state_of(record: LockRecord) -> str:
    if not record.is_held:
        return "free"
    return "held" if demoted_leader(record) is None else "demoted"


def claim_id(record: LockRecord) -> str | None:
    """None in a record of ShedLock for Java, which has a holder only."""
    return record.locked_by[len(record.holder) + 1 :] or None


# For programs


def to_json(record: LockRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "held": record.is_held,
        "demoted": record.is_held and demoted_leader(record) is not None,
        "holder": record.holder,
        "claim_id": claim_id(record),
        "locked_by": record.locked_by,
        "locked_at": utc(record.locked_at),
        "lock_until": utc(record.lock_until),
        "remaining": record.remaining.total_seconds(),
        "fencing_token": record.fencing_token,
        "last_fire_time": utc(record.last_fire_time),
    }


def utc(moment: datetime | None) -> str | None:
    """ISO 8601, always with microseconds, so that it sorts as text."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds") if moment is not None else None


def json_line(value: object) -> str:
    """On one line."""
    return json.dumps(value)  # in ASCII: a terminal obeys nothing in it


# For people


def remaining_of(record: LockRecord) -> str:
    return in_words(record.remaining) if record.is_held else NOTHING


def state_text(record: LockRecord) -> Text:
    state = state_of(record)
    # Colours that are readable on white as on black.
    style = {"held": "green", "demoted": "magenta"}.get(state, "")
    return Text(state, style=style)


def records_table(records: Sequence[LockRecord], width: int) -> Table:
    """Lock names and holders are folded, never cut, so that they can be copied."""
    is_wide = width >= WIDE
    table = lock_table("Remaining", *(("Token", "Last fire time") if is_wide else ()))
    for record in records:
        table.add_row(
            Text(printable(record.name)),
            state_text(record),
            Text(holder_of(record)),
            since(record, is_wide=is_wide),
            remaining_of(record),
            *((token_of(record), last_fire_time(record)) if is_wide else ()),
        )
    return table


def lock_table(*more: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("Lock", overflow="fold")
    table.add_column("State", no_wrap=True)
    table.add_column("Holder", overflow="fold")
    table.add_column("Since", no_wrap=True)
    for title in more:
        table.add_column(title, no_wrap=True)
    return table


def since(record: LockRecord, *, is_wide: bool) -> str:
    ago = f"{in_words(age(record))} ago"
    return f"{local_time(record.locked_at, record.read_at)} ({ago})" if is_wide else ago


def token_of(record: LockRecord) -> str:
    return NOTHING if record.fencing_token is None else str(record.fencing_token)


def last_fire_time(record: LockRecord) -> str:
    return NOTHING if record.last_fire_time is None else local_time(record.last_fire_time, record.read_at)


PLAIN_TITLES = ("NAME", "STATE", "REMAINING", "SINCE", "AGE", "TOKEN", "LAST_FIRE_TIME", "HOLDER")


def print_records(records: Sequence[LockRecord]) -> None:
    """A table on a terminal; elsewhere one lock a line, however long."""
    out = console()
    if out.is_terminal:
        out.print(records_table(records, out.width))
    else:
        print_columns([PLAIN_TITLES, *map(_plain_cells, records)])


def _plain_cells(record: LockRecord) -> tuple[str, ...]:
    return (
        printable(record.name),
        state_of(record),
        f"{record.remaining.total_seconds():.0f}s" if record.is_held else NOTHING,
        local_iso(record.locked_at),
        f"{age(record).total_seconds():.0f}s",
        token_of(record),
        NOTHING if record.last_fire_time is None else local_iso(record.last_fire_time),
        holder_of(record),
    )


def local_iso(moment: datetime) -> str:
    return in_local_zone(moment).isoformat(timespec="seconds")


def in_local_zone(moment: datetime) -> datetime:
    """``moment`` in the time zone of this machine; as it is, at the ends of time, where that has no such moment."""
    try:
        return moment.astimezone()
    except OverflowError:
        return moment


def print_columns(rows: Iterable[Sequence[str]]) -> None:
    """Aligned, without colours, never wrapped."""
    rows = list(rows)
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())
