"""Lock records for people and for programs.

Others may have written anything to the store: no text from a record is taken for markup, and none controls a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shedlock_py.display import (
    NOTHING,
    age,
    claim_id,
    fire_time_of,
    holder_of,
    in_words,
    local_iso,
    local_time,
    printable,
    state_of,
    token_of,
    utc,
)
from shedlock_py.record import LockRecord

WIDE = 110
"""Columns of a terminal from which on a table has everything."""
LEAST_WIDTHS = {"": 72, "Since": 58, "Remaining": 44}
"""Columns of a terminal below which a column of the table is left out: lock names and holders need the room."""
STYLES = {"held": "green", "demoted": "magenta", "paused": "yellow", "done": "", "free": ""}
"""Colours that are readable on white as on black."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error that rich has caught: ``Commands`` decides the exit code."""
        raise


def console() -> Console:
    """For tables on standard output, with colours if rich finds that they are wanted."""
    out = _Console(highlight=False, soft_wrap=False)
    if not out.width:  # COLUMNS=0, with which rich prints nothing
        out.width = 80
    return out


def is_on_terminal() -> bool:
    """Whether the output is for people: the layout goes by this, and not by FORCE_COLOR, which rich takes for it."""
    return sys.stdout is not None and sys.stdout.isatty()


# Records


def to_json(record: LockRecord) -> dict[str, Any]:
    pause = record.pause if record.is_paused else None
    return {
        "name": record.name,
        "held": record.is_held,
        "demoted": state_of(record) == "demoted",
        "done": record.is_done,
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
    if is_on_terminal():
        out = console()
        out.print(records_table(records, out.width))
        return
    rows = [("NAME", "STATE", "REMAINING", "SINCE", "AGE", "TOKEN", "LAST_FIRE_TIME", "HOLDER")]
    for record in records:
        remaining = f"{record.remaining.total_seconds():.0f}s" if record.is_held else NOTHING
        since, since_age = local_iso(record.locked_at), f"{age(record).total_seconds():.0f}s"
        rows.append((
            printable(record.name), state_of(record), remaining, since, since_age, token_of(record),
            local_iso(fire_time_of(record)), holder_of(record),
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
    titles = ("Lock", "State", "Holder", "Since", "Remaining", *more)
    shown = [number for number, title in enumerate(titles) if width >= LEAST_WIDTHS.get(title, 0)]
    for title in (titles[number] for number in shown):
        is_folded = title in ("Lock", "Holder")
        table.add_column(title, overflow="fold" if is_folded else "ellipsis", no_wrap=not is_folded)
    for number, record in enumerate(records):
        since = f"{in_words(age(record))} ago"
        cells: list[Text | ProgressBar | str] = [
            Text(printable(record.name)),
            Text(state_of(record), style=STYLES[state_of(record)]),
            Text(holder_of(record)),
            f"{local_time(record.locked_at, record.read_at)} ({since})" if is_wide else since,
            in_words(record.remaining) if record.is_held else NOTHING,
        ]
        if parts_left:
            left, style = parts_left[number], "green" if parts_left[number] > 0.15 else "red"
            bar = ProgressBar(1.0, left, 12, style="bright_black", complete_style=style, finished_style="green")
            cells.append(bar if record.is_held else "")
        elif is_wide:
            cells.append(token_of(record))
        if is_wide:
            cells.append(local_time(fire_time_of(record), record.read_at))
        table.add_row(*(cells[number] for number in shown))
    return table
