"""``shedlock pause`` and ``shedlock resume``."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic
from typing import Any

import click

from shedlock_py.cli.common import NO, able, duration_option, fail, open_store, option, store_option, usage_errors, warn
from shedlock_py.cli.names import name_argument, record_or_fail, similar_names
from shedlock_py.model.record import LockRecord, Pause
from shedlock_py.operators.display import holder_of, pause_in_words, running_in_words
from shedlock_py.provider import LockProvider

PROGRESS = timedelta(seconds=10)
"""The least time between two reports of a wait about another holder."""


@click.command()
@name_argument
@duration_option("--for", "for_", required=True, help="How long, for example 2h. Then the pause ends by itself.")
@option("--why", default="", metavar="TEXT", help="The reason, shown to people.")
@duration_option("--wait", zero=True, default="0s", help="How long to wait for a job that runs now.")
@store_option
@click.pass_context
def pause(ctx: click.Context, name: str, for_: timedelta, why: str, wait: timedelta, store: str | None) -> None:
    """Pause a job on all hosts for a while. Exits 1 if it runs now.

    Does not stop a job that runs; --wait waits until it ends. The pause ends by itself, or with shedlock resume.
    """
    with usage_errors(ctx, "--why: "):
        Pause.validated("operator", why)
    with open_store(store, must_be_shared=True) as provider:
        before = _able(provider).record(name)
        if before is None:
            warn(f"the store had no lock {name!r} until now; {similar_names(provider, name)}")
        record = _pause(provider, name, for_, why, wait, before)
    if not record.is_paused:
        cure = "" if wait else "; --wait 10m waits for its end"
        fail(f"lock {name!r} is not paused: {running_in_words(record)}{cure}", NO)
    was = f"; it was {pause_in_words(before)}" if before is not None and before.is_paused else ""
    click.echo(f"lock {name!r} is {pause_in_words(record)}{was}")


def _able(provider: LockProvider) -> Any:
    return able(provider, "pause", "cannot pause a lock")


def _pause(
    provider: Any, name: str, for_: timedelta, why: str, wait: timedelta, before: LockRecord | None
) -> LockRecord:
    """Try until the lock is paused or ``wait`` is over. Report each holder that the pause waits for."""
    until = monotonic() + wait.total_seconds()
    record: LockRecord = provider.pause(name, for_, why, expected=before)
    reported = None
    while not record.is_paused and (left := until - monotonic()) > 0:
        if record.locked_by != reported:
            reported = record.locked_by
            warn(f"waiting for lock {name!r}: {running_in_words(record)}")
        record = provider.pause(name, for_, why, wait=min(timedelta(seconds=left), PROGRESS), expected=before)
    return record


@click.command()
@name_argument
@store_option
def resume(name: str, store: str | None) -> None:
    """End a pause. Exits 1 if the job is not paused."""
    with open_store(store) as provider:
        record = record_or_fail(provider, name)
        if not record.is_paused or not _able(provider).resume(name, record):
            held = f"it is held by {holder_of(record)}" if record.is_held and not record.is_paused else "it is free"
            fail(f"lock {name!r} is not paused; {held}", NO)
    click.echo(f"lock {name!r} is resumed; it was {pause_in_words(record)}")
