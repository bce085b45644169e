"""Arguments for lock names, their shell completion, and the message about an unknown name."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable
from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from shedlock_py.cli.common import NO, fail, open_store, usage_errors
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import validate_name, validate_prefix
from shedlock_py.provider import LockProvider


def _complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the lock names in the store. Return no names if the store fails: a shell must not show an error."""
    store = ctx.params.get("store") or os.environ.get("SHEDLOCK_STORE")
    names: list[str] = []
    logging.disable()
    with suppress(Exception), open_store(store) as provider:
        names = [record.name for record in provider.records(incomplete)]
    logging.disable(logging.NOTSET)
    return [CompletionItem(name) for name in names if _is_plain(name)]


def _is_plain(name: str) -> bool:
    """Return whether ``name`` needs no quotes. Bash completes words without quotes, and would execute ``$(…)``."""
    return not name.startswith("-") and all(each.isalnum() or each in "@%+=:,./-_" for each in name)


def _valid(validate: Callable[[object], str]) -> Callable[[click.Context, click.Parameter, str], str]:
    """Return the callback of an argument that ``validate`` checks."""

    def callback(ctx: click.Context, param: click.Parameter, value: str) -> str:
        with usage_errors(ctx):
            return value if ctx.resilient_parsing else validate(value)

    return callback


name_argument = click.argument("name", shell_complete=_complete_names, callback=_valid(validate_name))
key_argument = click.argument("name", metavar="KEY", shell_complete=_complete_names, callback=_valid(validate_name))
prefix_argument = click.argument("prefix", default="", shell_complete=_complete_names, callback=_valid(validate_prefix))


def record_or_fail(provider: LockProvider, name: str) -> LockRecord:
    """Return the record of ``name``. If it is missing, print similar names and exit."""
    record = provider.record(name)
    if record is None:
        fail(f"the store has no lock {name!r}; {similar_names(provider, name)}", NO)
    return record


def similar_names(provider: LockProvider, name: str) -> str:
    """Return a hint for a name that the store does not have."""
    folded = {other.name.casefold(): other.name for other in provider.records()}
    near = [repr(folded[other]) for other in difflib.get_close_matches(name.casefold(), folded, n=3)]
    return f"did you mean {' or '.join(near)}?" if near else "see: shedlock list"
