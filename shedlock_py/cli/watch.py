"""``shedlock watch``: a live table on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shedlock_py.cli.changes import Change, Watch
from shedlock_py.cli.common import DurationType, console, json_option, open_store, option, printable, store_option
from shedlock_py.cli.show import prefix_argument
from shedlock_py.cli.tables import (
    WIDE,
    holder_of,
    json_line,
    last_fire_time,
    local_iso,
    lock_table,
    remaining_of,
    since,
    state_text,
    to_json,
    utc,
)
from shedlock_py.errors import ProviderError, ProviderUnreachable
from shedlock_py.provider import LockProvider
from shedlock_py.record import LockRecord

BAR = 12


@click.command()
@prefix_argument
@option(
    "--every",
    envvar="SHEDLOCK_WATCH_EVERY",
    type=DurationType(),
    default="1s",
    show_default=True,
    help="How often to look, 100ms at least.",
)
@store_option
@json_option
def watch(prefix: str, every: timedelta, store: str | None, as_json: bool) -> None:
    """Watch the locks whose names start with PREFIX, until Ctrl-C.

    A live table on a terminal. Elsewhere one line for each change: held (when the watch began), acquired, released,
    expired, demoted (an election), ran (acquired and free again between two looks), deleted, failed (the store did not
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


class _View:
    """Where the looks at the store go."""

    def saw(self, records: Sequence[LockRecord], changes: Sequence[Change], watched: Watch) -> None:
        raise NotImplementedError

    def failed(self, error: ProviderError) -> None:
        raise NotImplementedError


def _watch(provider: LockProvider, prefix: str, seconds: float, view: _View) -> None:
    watched, has_looked = Watch(), False
    while True:
        started = time.monotonic()
        try:
            records = provider.records(prefix)
        except ProviderError as error:
            if not has_looked and not isinstance(error, ProviderUnreachable):
                raise  # such as a missing table: that will not mend itself
            view.failed(error)
        else:
            has_looked = True
            view.saw(records, watched.look(records), watched)
        time.sleep(max(0.0, started + seconds - time.monotonic()))


class _Lines(_View):
    """A line for each change."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._has_failed = False

    def saw(self, records: Sequence[LockRecord], changes: Sequence[Change], watched: Watch) -> None:
        if self._has_failed:
            self._has_failed = False
            self._print("recovered", datetime.now(UTC), None, "")
        for change in changes:
            self._print(change.kind, change.record.read_at, change.record, "")

    def failed(self, error: ProviderError) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._print("failed", datetime.now(UTC), None, _one_line(error))

    def _print(self, change: str, moment: datetime, record: LockRecord | None, error: str) -> None:
        if self._as_json:
            what = {"time": utc(moment), "change": change, "error": error or None}
            line = json_line(what | {"lock": None if record is None else to_json(record)})
        else:
            details = error if record is None else _details(record)
            line = f"{local_iso(moment)}  {change:<11}  {details}".rstrip()
        click.echo(line)  # flushes: a reader of the pipe sees it at once


def _details(record: LockRecord) -> str:
    held = f", for {remaining_of(record)}" if record.is_held else ""
    token = "" if record.fencing_token is None else f", token {record.fencing_token}"
    return f"{printable(record.name)}  by {holder_of(record)}{held}{token}"


def _one_line(error: ProviderError) -> str:
    return printable(" ".join(str(error).split()))


class _LiveTable(_View):
    def __init__(self, live: Live, out: Console) -> None:
        self._live = live
        self._out = out
        self._table: Table | Text = Text("no answer from the store yet")
        self._seen_at: datetime | None = None

    def saw(self, records: Sequence[LockRecord], changes: Sequence[Change], watched: Watch) -> None:
        self._seen_at = datetime.now().astimezone()
        self._table = self._lock_table(records, watched)
        held = sum(record.is_held for record in records)
        self._update(Text(f"{held} of {len(records)} locks held at {self._seen_at:%H:%M:%S}; Ctrl-C ends"))

    def failed(self, error: ProviderError) -> None:
        seen = f"; shown as of {self._seen_at:%H:%M:%S}" if self._seen_at else ""
        self._update(Text(f"{_one_line(error)}{seen}; trying again", style="bold red"))

    def _update(self, status: Text) -> None:
        self._live.update(Group(status, self._table), refresh=True)

    def _lock_table(self, records: Sequence[LockRecord], watched: Watch) -> Table | Text:
        if not records:
            return Text("no locks")
        is_wide = self._out.width >= WIDE
        table = lock_table("Remaining", "", *(("Last fire time",) if is_wide else ()))
        most = max(1, self._out.height - 3)
        # What does not fit is not shown: then those that are held come first.
        shown = records if len(records) <= most else sorted(records, key=lambda record: not record.is_held)[:most]
        for record in shown:
            left = watched.part_left(record)
            bar = ProgressBar(
                total=1.0,
                completed=left,
                width=BAR,
                style="bright_black",
                complete_style="green" if left > 0.15 else "red",
                finished_style="green",
            )
            table.add_row(
                Text(printable(record.name)),
                state_text(record),
                Text(holder_of(record)),
                since(record, is_wide=is_wide),
                remaining_of(record),
                bar if record.is_held else "",
                *((last_fire_time(record),) if is_wide else ()),
            )
        return table
