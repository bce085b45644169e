"""``shedlock doctor``: check the store with a lock of its own."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict

import click
from rich.text import Text

from shedlock_py.cli.common import NO, json_option, open_store, print_json, printable, store_option
from shedlock_py.cli.tables import console
from shedlock_py.errors import ProviderError
from shedlock_py.operators.checks import REACH, Check, checks_of, failed


@click.command(short_help="Check the store, and try a lock in it.")
@store_option
@json_option
def doctor(store: str | None, as_json: bool) -> None:
    """Check the store, and try a lock in it. Exits 1 if a check fails; a warning ("!") does not count.

    Tries all operations on the lock "shedlock-doctor". Its record stays in the store.
    """
    checks: list[Check] = []
    with ExitStack() as stack:
        try:
            provider = stack.enter_context(open_store(store))
        except ProviderError as error:  # the SQLite file is missing
            shown, coming = printable(store or ""), iter([failed(REACH, error)])
        else:
            shown, coming = printable(repr(provider)), checks_of(provider)
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


_SIGNS = {"ok": ("✓", "ok", "green"), "warning": ("!", "!", "bold magenta"), "failed": ("✗", "FAILED", "bold red")}


def _print(check: Check) -> None:
    out = console()
    sign, in_ascii, style = _SIGNS[check.status]
    sign = sign if out.encoding.startswith("utf") else in_ascii
    out.print(Text.assemble((sign, style), f" {check.check}: {printable(check.message)}"), soft_wrap=True)
    if check.hint:
        out.print(Text(f"  {printable(check.hint)}"), soft_wrap=True)
