"""``shedlock watch``: a live table on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Protocol

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shedlock_py.cli.changes import Watch
from shedlock_py.cli.common import console, duration_option, json_option, open_store, printable, store_option
from shedlock_py.cli.show import prefix_argument
from shedlock_py.cli.tables import holder_of, local_iso, records_table, remaining_of, to_json, utc
from shedlock_py.errors import ProviderError, ProviderUnreachable
from shedlock_py.provider import LockProvider
from shedlock_py.record import LockRecord


@click.command()
@prefix_argument
@duration_option(
    "--every", envvar="SHEDLOCK_WATCH_EVERY", default="1s", help="How often to read the store, 100ms at least."
)
@store_option
@json_option
def watch(prefix: str, every: timedelta, store: str | None, as_json: bool) -> None:
    """Watch the locks whose names start with PREFIX, until Ctrl-C.

    A live table on a terminal. Elsewhere one line for each change: held (when the watch began), acquired, released,
    expired, demoted (an election), ran (acquired and free again between two reads), deleted, failed (the store did not
    answer, or with an error), recovered (it answers again). With --json each is a JSON object on a line of its own.

    The bar shows what is left of the time from acquisition to expiry or, where an extension was seen, since the newest
    extension.
    """
    seconds = max(every.total_seconds(), 0.1)
    out = console()
    with open_store(store) as provider, suppress(KeyboardInterrupt):  # Ctrl-C is how a watch ends: no failure
        if out.is_interactive and not as_json:
            with Live(console=out, auto_refresh=False) as live:
                _watch(provider, prefix, seconds, _LiveTable(live, out))
        else:
            _watch(provider, prefix, seconds, _Lines(as_json))


class _Display(Protocol):
    def update(self, records: Sequence[LockRecord]) -> None: ...

    def fail(self, error: str) -> None: ...


def _watch(provider: LockProvider, prefix: str, seconds: float, display: _Display) -> None:
    has_succeeded = False
    while True:
        started = time.monotonic()
        try:
            records = provider.records(prefix)
        except ProviderError as error:
            if not has_succeeded and not isinstance(error, ProviderUnreachable):
                raise  # such as a missing table, which does not appear by itself
            display.fail(printable(" ".join(str(error).split())))
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
        for change in self._watch.update(records):
            self._print(change.kind, change.record.read_at, record=change.record)

    def fail(self, error: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._print("failed", datetime.now(UTC), error=error)

    def _print(self, change: str, moment: datetime, *, record: LockRecord | None = None, error: str = "") -> None:
        if self._as_json:
            lock = None if record is None else to_json(record)
            line = json.dumps({"time": utc(moment), "change": change, "error": error or None, "lock": lock})
        else:
            line = f"{local_iso(moment)}  {change:<11}  {error if record is None else _details(record)}".rstrip()
        click.echo(line)  # flushes, so that a reader of the pipe gets the line at once


def _details(record: LockRecord) -> str:
    held = f", for {remaining_of(record)}" if record.is_held else ""
    token = "" if record.fencing_token is None else f", token {record.fencing_token}"
    return f"{printable(record.name)}  by {holder_of(record)}{held}{token}"


class _LiveTable:
    def __init__(self, live: Live, out: Console) -> None:
        self._live = live
        self._out = out
        self._watch = Watch()
        self._table: Table | Text = Text("no answer from the store yet")
        self._read_at: datetime | None = None

    def update(self, records: Sequence[LockRecord]) -> None:
        self._watch.update(records)
        self._read_at = datetime.now().astimezone()
        held = sum(record.is_held for record in records)
        status = Text(f"{held} of {len(records)} locks held at {self._read_at:%H:%M:%S}; Ctrl-C ends")
        most = max(1, self._out.height - 3)
        if len(records) > most:  # held locks first: the rest does not fit
            records = sorted(records, key=lambda record: not record.is_held)[:most]
        parts_left = [self._watch.part_left(record) for record in records]
        self._table = records_table(records, self._out.width, parts_left) if records else Text("no locks")
        self._show(status)

    def fail(self, error: str) -> None:
        age = f"; shown as of {self._read_at:%H:%M:%S}" if self._read_at else ""
        self._show(Text(f"{error}{age}; trying again", style="bold red"))

    def _show(self, status: Text) -> None:
        self._live.update(Group(status, self._table), refresh=True)
