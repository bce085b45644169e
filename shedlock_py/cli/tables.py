"""Lock records for people and for programs.

Other programs may have written anything to the store. Its text is never markup, and is escaped for the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shedlock_py.cli.common import is_terminal
from shedlock_py.model.record import LockRecord
from shedlock_py.operators.display import (
    NOTHING,
    age,
    claim_id,
    fire_time_of,
    holder_of,
    in_words,
    last_start,
    local_iso,
    local_time,
    printable,
    state_of,
    token_of,
    utc,
)

WIDE = 110
"""Terminal columns that a table needs for all its columns."""
LEAST_WIDTHS = {
    "": 72,
    "Last start": 58,
    "Until": 44,
    "Took": 44,
    "Due": 72,
    "By": 72,
    "Token": WIDE,
    "Fire time": WIDE,
}
"""Terminal columns that each column of a table needs. A narrower terminal has no room beside names and holders."""
FOLDED = ("Lock", "Holder", "Error", "By")
"""These columns are folded and never cut, so that people can copy them."""
COLOURED = ("State", "Outcome")
STYLES = {
    "held": "green", "ok": "green", "running": "green", "on_time": "green", "failed": "red", "lost": "red",
    "vanished": "red", "unfinished": "red", "overdue": "red", "stuck": "red", "paused": "yellow",
    "cancelled": "magenta", "demoted": "magenta",
}  # fmt: skip
"""Colours that are readable on white and on black."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error again that rich has caught, because ``Commands`` decides the exit code."""
        raise


def console() -> Console:
    """Return a console for tables on standard output. rich decides about colours."""
    out = _Console(highlight=False, soft_wrap=False)
    if not out.width:  # with COLUMNS=0 rich would print nothing
        out.width = 80
    return out


def is_on_terminal() -> bool:
    """Return whether the output is for people. It decides the layout; FORCE_COLOR does not, though rich thinks so."""
    return is_terminal(sys.stdout)


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


def table(titles: Sequence[str], rows: Iterable[Sequence[RenderableType]], width: int) -> Table:
    """Return a table for a terminal of ``width`` columns."""
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    shown = [number for number, title in enumerate(titles) if width >= LEAST_WIDTHS.get(title, 0)]
    for title in (titles[number] for number in shown):
        is_folded = title in FOLDED
        found.add_column(title, overflow="fold" if is_folded else "ellipsis", no_wrap=not is_folded)
    for row in rows:
        found.add_row(*(_cell(row[number], titles[number]) for number in shown))
    return found


def _cell(cell: RenderableType, title: str) -> RenderableType:
    """Return a cell. Its text is never markup, because other programs may have written it."""
    style = STYLES.get(cell, "") if isinstance(cell, str) and title in COLOURED else ""
    return Text(cell, style=style) if isinstance(cell, str) else cell


def print_records(records: Sequence[LockRecord], states: Mapping[str, str] | None = None) -> None:
    """Print a table on a terminal. Elsewhere print one lock per line, however long.

    :param states: states by lock name, which replace the state of the record.
    """
    if is_on_terminal():
        out = console()
        out.print(records_table(records, out.width, states=states))
        return
    rows = [("LOCK", "STATE", "UNTIL", "LAST_START", "TOKEN", "FIRE_TIME", "HOLDER")]
    for record in records:
        until = local_iso(record.lock_until) if record.is_held else NOTHING
        rows.append((
            printable(record.name), (states or {}).get(record.name) or state_of(record), until,
            local_iso(last_start(record)), token_of(record), local_iso(fire_time_of(record)), holder_of(record),
        ))  # fmt: skip
    print_columns(rows)


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns without colours. Never wrap them."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def records_table(
    records: Sequence[LockRecord],
    width: int,
    parts_left: Sequence[float] = (),
    states: Mapping[str, str] | None = None,
) -> Table:
    """Return a table of records for a terminal.

    :param parts_left: the length of each record's bar, from 0 to 1. Bars replace fencing tokens.
    """
    is_wide = width >= WIDE
    rows: list[list[RenderableType]] = []
    for number, record in enumerate(records):
        start, ago = last_start(record), f"{in_words(age(record))} ago"
        shown = f"{local_time(start, record.read_at)} ({ago})" if is_wide else ago
        bar: RenderableType = ""
        if parts_left and record.is_held:
            left, style = parts_left[number], "green" if parts_left[number] > 0.15 else "red"
            bar = ProgressBar(1.0, left, 12, style="bright_black", complete_style=style, finished_style="green")
        rows.append([
            printable(record.name),
            (states or {}).get(record.name) or state_of(record),
            holder_of(record),
            shown if start else NOTHING,
            f"in {in_words(record.remaining)}" if record.is_held else NOTHING,
            bar if parts_left else token_of(record),
            local_time(fire_time_of(record), record.read_at),
        ])  # fmt: skip
    last = "" if parts_left else "Token"
    return table(("Lock", "State", "Holder", "Last start", "Until", last, "Fire time"), rows, width)
