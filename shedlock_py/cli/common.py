"""Shared parts of the commands: options, exit codes, errors on one line, output for people and as JSON."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from reprlib import repr as short_repr
from typing import Any, NoReturn, TextIO, TypeVar

import click
from click.core import ParameterSource

from shedlock_py.errors import ConfigurationError
from shedlock_py.events import Listener, log_listener, logger
from shedlock_py.model.durations import parse_duration
from shedlock_py.operators.display import one_line as one_line
from shedlock_py.operators.display import printable as printable
from shedlock_py.provider import LockProvider, can, require_file
from shedlock_py.settings.lookup import sync_provider

F = TypeVar("F", bound=Callable[..., Any])

# Exit codes of sysexits.h, which flock(1) uses, too.
OK = 0
NO = 1  # no such lock, not held, a check failed
USAGE = 64
UNAVAILABLE = 69  # the store failed or did not reply
SOFTWARE = 70  # a bug in shedlock_py
IO_ERROR = 74  # the output cannot be written: the disk is full, or the pipe is closed
LOST = 75  # ``shedlock run``: the lease was lost, and the command was ended
CONFIG = 78  # a wrong URL of the store, a missing package, a value that cannot work
NOT_DONE = 124  # ``shedlock once``: not done in time; timeout(1) has the same code
INTERRUPTED = 130  # Ctrl-C; shells have the same code


def option(*names: str, envvar: str | None = None, **settings: Any) -> Callable[[F], F]:
    """Return a click option that shows its environment variable in ``--help``.

    :param envvar: only for options of commands that run unattended.
    """
    return click.option(*names, envvar=envvar, show_envvar=envvar is not None, **settings)


def duration_option(*names: str, envvar: str | None = None, zero: bool = False, **settings: Any) -> Callable[[F], F]:
    """Return an option for a duration such as 10m, 1h30m or 250ms."""

    def duration(value: str) -> timedelta:
        try:
            return parse_duration(value, zero=zero)
        except ConfigurationError:  # its message also shows Python values
            limits = "up to ten years" if zero else "above zero, up to ten years"
            hint = f"write for example 10m, 1h30m, 90s, 250ms ({limits})"
            raise click.BadParameter(f"{short_repr(value)} is not a duration; {hint}") from None

    return option(*names, envvar=envvar, type=duration, show_default=True, **settings)


grace_option = duration_option(
    "--grace",
    envvar="SHEDLOCK_GRACE",
    zero=True,
    default="10s",
    help="When the lease is lost, the command gets SIGTERM, and SIGKILL after this time.",
)
holder_option = option(
    "--holder", envvar="SHEDLOCK_HOLDER", help="The name of this holder, shown to people. Default: host:pid."
)
store_option = option(
    "--store",
    envvar="SHEDLOCK_STORE",
    metavar="URL",
    help="URL of the store.",
)
json_option = option("--json", "as_json", is_flag=True, help="Print JSON.")


@contextmanager
def usage_errors(ctx: click.Context, before: str = "") -> Iterator[None]:
    """Report a value that cannot work as wrong usage.

    :param before: the first words of the message.
    """
    try:
        yield
    except ConfigurationError as error:
        raise click.UsageError(f"{before}{error}", ctx) from error


@contextmanager
def unix_command(ctx: click.Context, instead: str) -> Iterator[None]:
    """Refuse this command on Windows. Exit with the code of shells if its program cannot be started.

    :param instead: what to do on Windows.
    """
    if not hasattr(os, "posix_spawn"):
        raise ConfigurationError(f"shedlock {ctx.info_name} needs Linux, macOS or another Unix; here, {instead}")
    from shedlock_py.cli.child import CannotStart  # late: it names signals that Windows lacks

    try:
        yield
    except CannotStart as error:
        fail(str(error), error.code)


def debug_listeners(ctx: click.Context) -> tuple[Listener, ...]:
    """Return the listeners that ``--debug`` adds."""
    return (log_listener,) if ctx.find_root().params.get("debug") else ()


@contextmanager
def open_store(
    store: str | None, *, may_be_missing: bool = False, must_be_shared: bool = False
) -> Iterator[LockProvider]:
    """Open the provider at ``store``, and close it at the end.

    :param may_be_missing: accept a missing SQLite file. Otherwise it is an error, because SQLite would create the file
        of a mistyped path.
    :param must_be_shared: refuse locks that only this process has.
    :raises ConfigurationError: ``store`` names no provider, or a provider with locks that only this process has.
    :raises ProviderError: the SQLite file is missing.
    """
    store = given_store(store)
    if "://" not in store and not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())  # as python -m does, for pkg.module:provider
    provider = sync_provider(store)
    if not gc.isenabled():  # __main__ has switched it off
        gc.freeze()  # imported objects live until exit; the collector would traverse them there in vain
        gc.enable()
    try:
        if store.partition("://")[0].partition("+")[0].lower() == "sqlite" and not may_be_missing:
            require_file(provider)
        if must_be_shared and not getattr(provider, "is_shared", True):
            raise ConfigurationError(
                "locks in memory are private to this process, so they lock nothing here; use sqlite:///file"
            )
        yield provider
    finally:
        try:
            getattr(provider, "close", lambda: None)()
        except Exception as error:  # the command is done: this must not replace its exit code
            logger.warning("the store could not be closed: %s", one_line(error))


def able(provider: LockProvider, method: str, cannot: str) -> Any:
    """Return ``provider`` if it has the optional method ``method``.

    :param cannot: what it cannot do without that method, for the message.
    :raises ConfigurationError: the provider lacks the method.
    """
    if not can(provider, method):
        raise ConfigurationError(f"{provider!r} {cannot}: it has no {method}()")
    return provider


def able_to_forget(provider: LockProvider) -> Any:
    return able(provider, "forget_fire_time", "cannot forget a fire time")


def given_store(store: str | None) -> str:
    """Return the store of this command, as text.

    A program that embeds the command line, such as Django, has a store. Only ``--store`` replaces it: the environment
    variable does not, because the program's guards do not read it either.

    :raises ConfigurationError: no store is given.
    """
    context = click.get_current_context(silent=True)
    if context is not None and context.get_parameter_source("store") is not ParameterSource.COMMANDLINE:
        store = context.obj or store
    store = (store or "").strip()
    if not store:
        raise ConfigurationError("no store: give --store URL or set SHEDLOCK_STORE, for example sqlite:///locks.db")
    return store


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal. A closed standard stream is None in Python."""
    return stream is not None and stream.isatty()


def fail(message: str, code: int) -> NoReturn:
    """Print one line on standard error, and exit with ``code`` even if that line cannot be written."""
    warn(message)
    sys.exit(code)


def warn(message: str) -> None:
    """Print a message on standard error."""
    note(printable(f"shedlock: {message}"))


def note(text: str) -> None:
    """Print a line for people on standard error. Ignore it if the line cannot be written."""
    with suppress(OSError):
        click.echo(text, err=True)


class RunCommand(click.Command):
    """Takes everything after the first ``--`` as the command to run.

    Without the ``--``, click would parse the options of that command as shedlock's options.

    :param usage: an example for the messages.
    """

    def __init__(self, *args: Any, usage: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._usage = usage

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        try:
            rest = super().parse_args(ctx, args[:end])
        except click.UsageError as error:
            if "--" in args or type(error) not in (
                click.UsageError,
                click.NoSuchOption,
            ):  # UsageError itself: extra arguments
                raise
            usage = f"put -- before the command: {self._usage}"
            raise click.UsageError(f"{error.format_message().rstrip('.')}; {usage}", ctx) from None
        ctx.params["command"] = args[end + 1 :]
        if not (ctx.params["command"] or ctx.params.get("forget") or ctx.resilient_parsing):
            raise click.UsageError(f"no command: {self._usage}", ctx)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND [ARGUMENT]..."]


# Output. Names and holders come from the store and may be hostile: escape them, so that they cannot control a terminal.


def encoding() -> str:
    """Return the encoding of standard output, in lower case."""
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower()


def print_json(value: object) -> None:
    is_utf8 = encoding().startswith("utf")  # other encodings may lack a character, and a replacement breaks JSON
    text = json.dumps(value, indent=2, ensure_ascii=not is_utf8)
    click.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))
