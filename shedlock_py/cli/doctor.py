"""``shedlock doctor``: check the store with a lock of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from datetime import timedelta

import click
from rich.console import Console
from rich.status import Status
from rich.text import Text

from shedlock_py.cli.common import (
    NO,
    duration_option,
    given_store,
    json_option,
    note,
    open_store,
    option,
    print_json,
    printable,
    store_option,
    warn,
)
from shedlock_py.cli.tables import console
from shedlock_py.errors import ProviderError
from shedlock_py.operators.checks import REACH, Check, checks_of, failed, private_store
from shedlock_py.operators.display import in_words
from shedlock_py.operators.torture import Judge
from shedlock_py.provider import LockProvider

NOTED_EVERY = timedelta(minutes=1)
"""How often --torture prints its progress if standard error is not a terminal."""


@click.command(short_help="Check the store, and try a lock in it.")
@option(
    "--torture",
    is_flag=True,
    help="Let 16 processes compete for locks, and look for double grants, lost leases and jumps of the clock. For a "
    "store or a proxy that the library's tests do not cover.",
)
@duration_option("--for", "lasts", help="How long --torture takes. Default: 1h.")
@store_option
@json_option
def doctor(torture: bool, lasts: timedelta | None, store: str | None, as_json: bool) -> None:
    """Check the store, and try a lock in it. Exits 1 if a check fails; a warning ("!") does not count.

    Tries all operations on the lock "shedlock-doctor". Its record stays in the store.

    --torture makes other checks instead, and ends with one verdict. Ctrl-C ends it early. The names of its records
    begin with "shedlock-torture-". It deletes them at the end.
    """
    if lasts is not None and not torture:
        raise click.UsageError("--for needs --torture")
    checks: list[Check] = []
    with ExitStack() as stack:
        try:
            provider = stack.enter_context(open_store(store))
        except ProviderError as error:  # the SQLite file is missing
            shown, coming = printable(store or ""), iter([failed(REACH, error)])
        else:
            shown, coming = printable(repr(provider)), checks_of(provider)
            if torture:
                coming = _tortured(provider, given_store(store), timedelta(hours=1) if lasts is None else lasts)
        if not as_json:
            click.echo(shown)
        for check in coming:
            checks.append(check)
            if not as_json:
                _print(check)  # at once, because the next check may take long
    is_well = all(check.status != "failed" for check in checks)
    if as_json:
        print_json({"store": shown, "ok": is_well, "checks": [asdict(check) for check in checks]})
    sys.exit(0 if is_well else NO)


def _tortured(provider: LockProvider, store: str, lasts: timedelta) -> Iterator[Check]:
    from shedlock_py.operators.racing import torture  # late: loads asyncio

    if fault := private_store(provider):
        yield replace(fault[0], status="failed")
        return
    err = Console(stderr=True)
    status = err.status("starting the racers; Ctrl-C ends it early") if err.is_terminal else nullcontext()
    noted = timedelta(0)

    def show(judge: Judge, passed: timedelta) -> bool:
        nonlocal noted
        text = f"{in_words(passed)} of {in_words(lasts)}: {judge.progress()}"
        if isinstance(status, Status):
            status.update(f"{text}; Ctrl-C ends it early")
        elif passed - noted >= NOTED_EVERY:
            noted = passed
            note(text)
        return True

    try:
        with status:
            judge, left = torture(provider, store, lasts, show)
    except ProviderError as error:
        yield failed(REACH, error)
        return
    if left:
        warn(f"these records could not be deleted: {', '.join(left)}; they do no harm")
    yield from judge.checks()


_SIGNS = {"ok": ("✓", "ok", "green"), "warning": ("!", "!", "bold magenta"), "failed": ("✗", "FAILED", "bold red")}


def _print(check: Check) -> None:
    out = console()
    sign, in_ascii, style = _SIGNS[check.status]
    sign = sign if out.encoding.startswith("utf") else in_ascii
    out.print(Text.assemble((sign, style), f" {check.check}: {printable(check.message)}"), soft_wrap=True)
    if check.hint:
        out.print(Text(f"  {printable(check.hint)}"), soft_wrap=True)
