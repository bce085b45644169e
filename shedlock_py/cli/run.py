"""``shedlock run``: the guard around a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta

import click

from shedlock_py.cli.common import DurationType, fail, is_in_memory, open_store, option, store_option, tell
from shedlock_py.cli.periods import period_of
from shedlock_py.cli.show import name_argument
from shedlock_py.config import Settings, is_active
from shedlock_py.durations import LONGEST
from shedlock_py.errors import ConfigurationError
from shedlock_py.events import log_listener
from shedlock_py.provider import LockProvider
from shedlock_py.request import LockRequest


class RunCommand(click.Command):
    """Everything after the first ``--`` is the command's; without it, options of the command would be taken as ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ours, command = args[:end], args[end + 1 :]
        try:
            rest = super().parse_args(ctx, ours)
        except click.UsageError as error:
            if "--" in args or not ("extra argument" in error.message or isinstance(error, click.NoSuchOption)):
                raise
            usage = "put -- before the command: shedlock run NAME --at-most 10m -- COMMAND"
            raise click.UsageError(f"{error.format_message().rstrip('.')}; {usage}", ctx) from None
        if not command and not ctx.resilient_parsing:
            raise click.UsageError("no command: shedlock run NAME --at-most 10m -- COMMAND", ctx)
        ctx.params["command"] = command
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND [ARGUMENT]..."]


@click.command(cls=RunCommand, short_help="Run a command under a lock.")
@name_argument
@option(
    "--at-most",
    envvar="SHEDLOCK_LOCK_AT_MOST_FOR",
    type=DurationType(),
    required=True,
    help="How long the lock is held if this machine dies. The command is ended when it takes longer, unless it is "
    "kept alive.",
)
@option(
    "--at-least",
    envvar="SHEDLOCK_LOCK_AT_LEAST_FOR",
    type=DurationType(zero=True),
    default="0s",
    show_default=True,
    help="For how long nobody else gets the lock, however short the command was.",
)
@option(
    "--keep-alive/--no-keep-alive",
    envvar="SHEDLOCK_KEEP_ALIVE",
    default=False,
    help="Extend the lock, every third of --at-most, until the command ends.",
)
@option(
    "--wait",
    envvar="SHEDLOCK_WAIT",
    type=DurationType(zero=True),
    default="0s",
    show_default=True,
    help="Try for so long to get a lock that is held.",
)
@option(
    "--once-per",
    envvar="SHEDLOCK_ONCE_PER",
    type=DurationType(),
    metavar="PERIOD",
    help="Run once in each period, on all hosts together, however short the command is: 1h, 1d. Periods are counted "
    "from 1970 in UTC and begin half a minute early, so that full minutes are far from where they begin.",
)
@option(
    "--skip-exit-code",
    envvar="SHEDLOCK_SKIP_EXIT_CODE",
    type=click.IntRange(0, 255),
    default=0,
    show_default=True,
    metavar="N",
    help="The exit code when the command is skipped.",
)
@option(
    "--grace",
    envvar="SHEDLOCK_GRACE",
    type=DurationType(zero=True),
    default="10s",
    show_default=True,
    help="How long the command may take to end when the lease is lost: SIGTERM, then SIGKILL.",
)
@option("--holder", envvar="SHEDLOCK_HOLDER", help="Who we are, for people to read. By default: host:pid.")
@option("-v", "--verbose", envvar="SHEDLOCK_VERBOSE", is_flag=True, help="Say so when the command is skipped, and why.")
@store_option
@click.pass_context
def run(
    ctx: click.Context,
    name: str,
    at_most: timedelta,
    at_least: timedelta,
    keep_alive: bool,
    wait: timedelta,
    once_per: timedelta | None,
    skip_exit_code: int,
    grace: timedelta,
    holder: str | None,
    verbose: bool,
    store: str | None,
    command: list[str],
) -> None:
    """Run COMMAND under the lock NAME; skip it if the lock is held elsewhere.

    Standard streams, arguments, environment, signals and the exit code are passed through. The command finds
    SHEDLOCK_LOCK_NAME and SHEDLOCK_FENCING_TOKEN in its environment.

    \b
    Exit codes:
      that of COMMAND; 128+N if signal N ended it
      0    skipped (--skip-exit-code N: that)
      64   wrong usage
      69   the store failed or did not answer; COMMAND did not run
      70   a mistake in shedlock_py itself
      75   the lease was lost, and COMMAND was ended
      78   configuration: the store's URL, a missing package
      126  COMMAND is not executable
      127  COMMAND was not found
      128+N  signal N came before COMMAND was started
    """
    now = datetime.now(UTC)  # what comes next may take its time
    if not hasattr(os, "posix_spawn"):
        raise ConfigurationError("shedlock run needs Linux, macOS or another Unix")
    from shedlock_py.cli.child import CannotStart, find_program  # late: they name signals that Windows does not have
    from shedlock_py.cli.guarded import Guarded

    locks = is_active()
    try:
        fire_time = None if once_per is None else period_of(now, once_per)
        request = LockRequest(name, at_most if locks else LONGEST, at_least, holder or None, fire_time)
    except ConfigurationError as error:
        text = str(error).replace("lock_at_least_for", "--at-least").replace("lock_at_most_for", "--at-most")
        raise click.UsageError(text, ctx) from error
    try:
        program = find_program(command[0])  # first: a slip of the pen must not use up the lock and the fire time
        guarded = Guarded(request, program, command, keep_alive=keep_alive, grace=grace)
        is_debug = bool(ctx.find_root().params.get("debug"))
        with _store(store) if locks else nullcontext() as provider:
            # After the store: the application's module that --store may name can call configure().
            Settings(listeners=(guarded.happened.put, *((log_listener,) if is_debug else ()))).apply()
            code = guarded.run(provider, wait)
            if code is None and verbose:
                tell(guarded.skip_reason(provider))
    except CannotStart as error:
        fail(str(error), error.code)
    sys.exit(skip_exit_code if code is None else code)


@contextmanager
def _store(store: str | None) -> Iterator[LockProvider]:
    with open_store(store) as provider:
        if is_in_memory(provider):
            raise ConfigurationError(
                "locks in memory are private to this process, so they lock nothing here; take sqlite:///file"
            )
        yield provider
