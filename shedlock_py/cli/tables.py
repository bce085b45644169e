"""Lock records for people and for programs.

Others may have written anything to the store: no text from a record is taken for markup, and none controls a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Any

import click
from rich.cells import cell_len
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shedlock_py.cli.common import console, printable
from shedlock_py.election.demotion import Demotion
from shedlock_py.record import LockRecord

LONGEST_LEAD = timedelta(seconds=30)
"""By which a period of ``run --once-per`` can begin before the moment that names it, which is its fire time."""
WIDE = 110
"""Columns of a terminal from which on a table has everything."""
NOTHING = "-"
STYLES = {"held": "green", "demoted": "magenta", "paused": "yellow", "free": ""}
"""Colours that are readable on white as on black."""


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


def in_local_zone(moment: datetime) -> datetime:
    """``moment`` in this machine's time zone; unchanged at the ends of time, where that zone has no such moment."""
    try:
        return moment.astimezone()
    except OverflowError:
        return moment


def local_iso(moment: datetime | None) -> str:
    return NOTHING if moment is None else in_local_zone(moment).isoformat(timespec="seconds")


def utc(moment: datetime | None) -> str | None:
    """ISO 8601, always with microseconds, so that it sorts as text."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds") if moment is not None else None


def demoted_leader(record: LockRecord) -> str | None:
    """The leader that was demoted, if a demotion keeps this record from other leaders."""
    demotion = Demotion.from_record(record)
    return None if demotion is None else printable(demotion.leader)


def holder_of(record: LockRecord) -> str:
    demoted = demoted_leader(record)
    if record.pause is not None:
        return f"({printable(record.holder)})"
    return printable(record.holder) if demoted is None else f"(demoted: {demoted})"


def pause_in_words(record: LockRecord) -> str:
    """Of a paused lock: by whom, why, and until when."""
    pause = record.pause
    assert pause is not None
    why = f": {printable(pause.reason)}" if pause.reason else ""
    return f"paused until {local_iso(record.lock_until)} by {printable(pause.by)}{why}"


def state_of(record: LockRecord) -> str:
    if not record.is_held:
        return "free"
    if record.is_paused:
        return "paused"
    return "held" if demoted_leader(record) is None else "demoted"


def claim_id(record: LockRecord) -> str | None:
    """None in a record of ShedLock for Java, which has a holder only."""
    return record.locked_by[len(record.holder) + 1 :] or None


def token_of(record: LockRecord) -> str:
    return NOTHING if record.fencing_token is None else str(record.fencing_token)


def future_fire_time(record: LockRecord) -> tuple[str, str] | None:
    """The fault and the cure, if the last fire time is in the future of the store's clock; else None."""
    fire_time = record.last_fire_time
    if fire_time is None or fire_time <= record.read_at + LONGEST_LEAD:
        return None
    fault = (
        f"lock {record.name!r}: its last fire time, {local_iso(fire_time)}, is {in_words(fire_time - record.read_at)} "
        f"in the future: a replica's clock was wrong, and runs that are due before it are skipped"
    )
    return fault, f"forget it with: shedlock release {quote(record.name)} --forget-fire-time"


# Records


def to_json(record: LockRecord) -> dict[str, Any]:
    pause = record.pause if record.is_paused else None
    return {
        "name": record.name,
        "held": record.is_held,
        "demoted": state_of(record) == "demoted",
        "paused": pause is not None,
        "paused_by": None if pause is None else pause.by,
        "pause_reason": None if pause is None else pause.reason,
        "holder": record.holder,
        "claim_id": claim_id(record),
        "locked_by": record.locked_by,
        "locked_at": utc(record.locked_at),
        "lock_until": utc(record.lock_until),
        "remaining": record.remaining.total_seconds(),
        "fencing_token": record.fencing_token,
        "last_fire_time": utc(record.last_fire_time),
    }


def print_records(records: Sequence[LockRecord]) -> None:
    """Print a table on a terminal; elsewhere one lock a line, however long."""
    out = console()
    if out.is_terminal:
        out.print(records_table(records, out.width))
        return
    rows = [("NAME", "STATE", "REMAINING", "SINCE", "AGE", "TOKEN", "LAST_FIRE_TIME", "HOLDER")]
    for record in records:
        remaining = f"{record.remaining.total_seconds():.0f}s" if record.is_held else NOTHING
        since, since_age = local_iso(record.locked_at), f"{age(record).total_seconds():.0f}s"
        rows.append((
            printable(record.name), state_of(record), remaining, since, since_age, token_of(record),
            local_iso(record.last_fire_time), holder_of(record),
        ))  # fmt: skip
    print_columns(rows)


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns, without colours, never wrapped."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def records_table(records: Sequence[LockRecord], width: int, parts_left: Sequence[float] = ()) -> Table:
    """A table for a terminal; lock names and holders are folded, never cut, so that they can be copied.

    :param parts_left: the length of each record's bar, from 0 to 1, in place of fencing tokens.
    """
    is_wide = width >= WIDE
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    more = ("" if parts_left else "Token", "Last fire time") if is_wide else ("",) if parts_left else ()
    for title in ("Lock", "State", "Holder", "Since", "Remaining", *more):
        is_folded = title in ("Lock", "Holder")
        table.add_column(title, overflow="fold" if is_folded else "ellipsis", no_wrap=not is_folded)
    for number, record in enumerate(records):
        since = f"{in_words(age(record))} ago"
        cells: list[Text | ProgressBar | str] = [
            Text(printable(record.name)),
            Text(state_of(record), style=STYLES[state_of(record)]),
            Text(holder_of(record)),
            f"{_local_time(record.locked_at, record.read_at)} ({since})" if is_wide else since,
            in_words(record.remaining) if record.is_held else NOTHING,
        ]
        if parts_left:
            left, style = parts_left[number], "green" if parts_left[number] > 0.15 else "red"
            bar = ProgressBar(1.0, left, 12, style="bright_black", complete_style=style, finished_style="green")
            cells.append(bar if record.is_held else "")
        elif is_wide:
            cells.append(token_of(record))
        if is_wide:
            cells.append(_local_time(record.last_fire_time, record.read_at))
        table.add_row(*cells)
    return table


def _local_time(moment: datetime | None, now: datetime) -> str:
    """The time of day in this machine's zone, with the date if that is not the day of ``now``."""
    if moment is None:
        return NOTHING
    local = in_local_zone(moment)
    return f"{local:%H:%M:%S}" if local.date() == now.astimezone().date() else f"{local:%Y-%m-%d %H:%M}"
