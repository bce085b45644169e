"""``shedlock watch``: a live table on a terminal, otherwise a line for each change."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shedlock_py.cli.common import duration_option, json_option, one_line, open_store, printable, store_option
from shedlock_py.cli.names import prefix_argument
from shedlock_py.cli.tables import console, is_on_terminal, records_table, to_json
from shedlock_py.errors import ProviderError, ProviderUnreachable
from shedlock_py.model.record import LockRecord
from shedlock_py.operators.display import holder_of, in_words, local_iso, state_of, utc

Kind = Literal["held", "acquired", "demoted", "paused", "released", "expired", "ran", "deleted"]
"""``held``: held when the watch began. ``ran``: acquired and free again between two reads."""


@click.command(short_help="Watch all locks until Ctrl-C.")
@prefix_argument
@duration_option("--every", default="1s", help="How often to read the store. Minimum: 100ms.")
@store_option
@json_option
def watch(prefix: str, every: timedelta, store: str | None, as_json: bool) -> None:
    """Watch all locks, or those whose names start with PREFIX, until Ctrl-C.

    A terminal shows a live table, with a bar for the time that each lease has left. A pipe gets a line for each change:
    held, acquired, released, expired, paused, demoted, ran (between two reads), deleted; failed and recovered (the
    store).
    """
    seconds = max(every.total_seconds(), 0.1)
    out = console()
    live = Live(console=out, auto_refresh=False) if is_on_terminal() and out.is_interactive and not as_json else None
    display = _Lines(as_json) if live is None else _LiveTable(live, out)
    has_succeeded = False
    # Ctrl-C ends a watch, and is not a failure.
    with open_store(store) as provider, suppress(KeyboardInterrupt), live or nullcontext():
        while True:
            started = time.monotonic()
            try:
                records = provider.records(prefix)
            except ProviderError as error:
                if not has_succeeded and not isinstance(error, ProviderUnreachable):
                    raise  # for example a missing table, which does not appear by itself
                display.fail(printable(one_line(error)))
            else:
                has_succeeded = True
                display.update(records)
            time.sleep(max(0.0, started + seconds - time.monotonic()))


class _Lines:
    """A line for each change."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._watch = Watch()
        self._has_failed = False

    def update(self, records: Sequence[LockRecord]) -> None:
        if self._has_failed:
            self._has_failed = False
            self._print("recovered", datetime.now(UTC))
        for kind, record in self._watch.update(records):
            self._print(kind, record.read_at, record=record)

    def fail(self, error: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._print("failed", datetime.now(UTC), error)

    def _print(self, change: str, moment: datetime, details: str = "", record: LockRecord | None = None) -> None:
        if self._as_json:
            lock = None if record is None else to_json(record)
            line = json.dumps({"time": utc(moment), "change": change, "error": details or None, "lock": lock})
        else:
            if record is not None:
                held = f", for {in_words(record.remaining)}" if record.is_held else ""
                token = "" if record.fencing_token is None else f", token {record.fencing_token}"
                details = f"{printable(record.name)}  by {holder_of(record)}{held}{token}"
            line = f"{local_iso(moment)}  {change:<11}  {details}".rstrip()
        click.echo(line)  # echo() flushes, so that the reader of a pipe gets the line at once


class _LiveTable:
    def __init__(self, live: Live, out: Console) -> None:
        self._live = live
        self._out = out
        self._watch = Watch()
        self._table: Table | Text = Text("no reply from the store yet")
        self._read_at = ""

    def update(self, records: Sequence[LockRecord]) -> None:
        self._watch.update(records)
        self._read_at = f"{datetime.now().astimezone():%H:%M:%S}"
        held = sum(record.is_held for record in records)
        status = Text(f"{held} of {len(records)} locks held at {self._read_at}; Ctrl-C ends")
        most = max(1, self._out.height - 3)
        if len(records) > most:  # held locks first; other locks may not fit
            records = sorted(records, key=lambda record: not record.is_held)[:most]
        parts_left = [self._watch.part_left(record) for record in records]
        self._table = records_table(records, self._out.width, parts_left) if records else Text("no locks")
        self._live.update(Group(status, self._table), refresh=True)

    def fail(self, error: str) -> None:
        age = f"; shown as of {self._read_at}" if self._read_at else ""
        status = Text(f"{error}{age}; trying again", style="bold red")
        self._live.update(Group(status, self._table), refresh=True)


# Changes


@dataclass(frozen=True)
class _Known:
    """Facts about one lock from the reads so far."""

    record: LockRecord
    hold: timedelta
    """The hold time, from the acquisition or from the newest extension that was seen."""
    was_shortened: bool = False
    """The lock was released, but is held until its ``lock_at_least_for`` is over."""


class Watch:
    """Compares each read of the store with the previous read."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] | None = None

    def update(self, records: Sequence[LockRecord]) -> list[tuple[Kind, LockRecord]]:
        """Return the changes since the last read. The first read returns the held locks."""
        before = self._known or {}
        found = [_compare(before.get(record.name), record) for record in records]
        if self._known is None:
            changes: list[tuple[Kind, LockRecord]] = [
                ("paused" if record.is_paused else "held", record) for record in records if record.is_held
            ]
        else:
            changes = [(kind, known.record) for kind, known in found if kind is not None]
        self._known = {known.record.name: known for _, known in found}
        return changes + [("deleted", known.record) for name, known in before.items() if name not in self._known]

    def part_left(self, record: LockRecord) -> float:
        """Return the part of a lock's hold time that is left, from 1 to 0."""
        known = (self._known or {}).get(record.name)
        hold = known.hold if known is not None else record.lock_until - record.locked_at
        return min(1.0, record.remaining / hold) if hold > timedelta(0) else 0.0


def _compare(known: _Known | None, record: LockRecord) -> tuple[Kind | None, _Known]:
    """Return the change of a lock since its last read, and the facts about it now."""
    if known is None or known.record.locked_by != record.locked_by:
        kinds: dict[str, Kind] = {
            "free": "ran",
            "done": "ran",
            "demoted": "demoted",
            "paused": "paused",
            "held": "acquired",
        }
        return kinds[state_of(record)], _Known(record, record.lock_until - record.locked_at)
    before = known.record
    was_shortened = known.was_shortened or record.lock_until < before.lock_until
    if record.lock_until > before.lock_until:
        # The record has no time and no length of an extension: take the remaining time. It may also be the next
        # acquisition by the same holder, because ShedLock for Java has no claim ids.
        now_known = _Known(record, record.remaining)
    else:
        now_known = _Known(record, known.hold, was_shortened)
    if record.is_held or not before.is_held:
        return None, now_known
    return "released" if was_shortened else "expired", now_known
