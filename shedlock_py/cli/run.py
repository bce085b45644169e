"""``shedlock run``: the guard around a command."""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import Any

import click
from click.core import ParameterSource

from shedlock_py.cli.common import (
    RunCommand,
    debug_listeners,
    duration_option,
    grace_option,
    holder_option,
    is_terminal,
    open_store,
    option,
    printable,
    store_option,
    unix_command,
    usage_errors,
    warn,
)
from shedlock_py.cli.names import name_argument
from shedlock_py.errors import ConfigurationError
from shedlock_py.guard.skips import Skipped
from shedlock_py.model.durations import LONGEST
from shedlock_py.model.lease import MOST_RECOVERIES
from shedlock_py.model.recovery import DEFAULT_MOST_RECOVERIES
from shedlock_py.model.request import LockRequest, check_hold_times
from shedlock_py.operators.display import holder_of, in_words, local_time
from shedlock_py.provider import LockProvider
from shedlock_py.settings.defaults import Settings
from shedlock_py.settings.off_switch import is_active
from shedlock_py.settings.options import LockOptions, check_keep_alive_limit, keep_alive_of_text


class KeepAlive(click.types.BoolParamType):
    """The type of ``--keep-alive``. The environment variable may also be a duration."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return super().convert(value, param, ctx)
        try:
            return keep_alive_of_text(value, "SHEDLOCK_KEEP_ALIVE") if value.strip() else False
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


@click.command(
    cls=RunCommand,
    usage="shedlock run NAME --at-most 10m -- COMMAND",
    short_help="Run a command under a lock.",
)
@name_argument
@duration_option(
    "--at-most",
    envvar="SHEDLOCK_LOCK_AT_MOST_FOR",
    required=True,
    help="How long the lock stays held if this machine dies. A command that takes longer is ended, unless --keep-alive "
    "extends the lock.",
)
@duration_option(
    "--at-least",
    envvar="SHEDLOCK_LOCK_AT_LEAST_FOR",
    zero=True,
    default="0s",
    help="Hold the lock at least this long, also if the command ends sooner.",
)
@option(
    "--keep-alive/--no-keep-alive",
    envvar="SHEDLOCK_KEEP_ALIVE",
    type=KeepAlive(),
    default=False,
    help="Extend the lock every third of --at-most until the command ends. The variable can also be a duration, which "
    "then means --keep-alive-for.",
)
@duration_option(
    "--keep-alive-for",
    help="Extend the lock for at most this time, for example 2h. A command that takes longer is ended.",
)
@duration_option(
    "--wait",
    envvar="SHEDLOCK_WAIT",
    zero=True,
    default="0s",
    help="How long to try again while the lock is held or the store is unreachable.",
)
@duration_option(
    "--once-per",
    metavar="PERIOD",
    help="Run once per period on all hosts together, for example once per 1h or 1d. Periods are counted from 1970 in "
    "UTC. They begin half a minute early, so that a job at a full minute is never near the start of a period.",
)
@option(
    "--recover",
    is_flag=True,
    help="If another host runs the command, wait until it ends, and run it here if that host dies. Then it runs at "
    "least once per period, but may run twice: it must be idempotent. Needs --once-per and --keep-alive.",
)
@option(
    "--max-recoveries",
    type=click.IntRange(1, MOST_RECOVERIES),
    default=DEFAULT_MOST_RECOVERIES,
    show_default=True,
    metavar="N",
    help="How often --recover may run the command again in one period, on all hosts together.",
)
@duration_option(
    "--expected-every",
    metavar="PERIOD",
    help="Longest time between two starts on all hosts together, for example 25h. With run history, shedlock overdue "
    "reports a command that starts later.",
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
@grace_option
@holder_option
@option("-v", "--verbose", is_flag=True, help="Print why the command is skipped. A terminal always shows it.")
@store_option
@click.pass_context
def run(
    ctx: click.Context,
    name: str,
    at_most: timedelta,
    at_least: timedelta,
    keep_alive: bool | timedelta,
    keep_alive_for: timedelta | None,
    wait: timedelta,
    once_per: timedelta | None,
    recover: bool,
    max_recoveries: int,
    expected_every: timedelta | None,
    skip_exit_code: int,
    grace: timedelta,
    holder: str | None,
    verbose: bool,
    store: str | None,
    command: list[str],
) -> None:
    """Run a command on one host at a time. It is skipped while another host runs it.

    Standard streams, arguments, environment, signals and the exit code are passed through. The command finds
    SHEDLOCK_LOCK_NAME and SHEDLOCK_FENCING_TOKEN in its environment.

    \b
    Exit codes:
      the exit code of COMMAND; 128+N if signal N ended it
      0    skipped (or the N of --skip-exit-code)
      64   wrong usage
      69   the store failed or did not reply; COMMAND did not run
      70   a bug in shedlock_py
      75   the lease was lost, and COMMAND was ended
      78   configuration: the store's URL, a missing package
      126  COMMAND is not executable
      127  COMMAND was not found
      128+N  signal N came before COMMAND started
    """
    options = LockOptions(expected_every=expected_every, once_per=once_per)
    if keep_alive_for is not None:
        if not keep_alive and ctx.get_parameter_source("keep_alive") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--no-keep-alive and --keep-alive-for exclude each other", ctx)
        keep_alive = keep_alive_for
    if recover and (once_per is None or not keep_alive):
        missing = "--once-per" if once_per is None else "--keep-alive"
        raise click.UsageError(f"--recover needs {missing}, too", ctx)
    with usage_errors(ctx):
        check_keep_alive_limit(keep_alive, at_most, ("--keep-alive-for", "--at-most"))
        at_most = at_most if is_active() else LONGEST
        check_hold_times(at_most, at_least, ("--at-most", "--at-least"))
        request = options.for_a_run(LockRequest(name, at_most, at_least, holder or None))
    with unix_command(ctx, "guard a Python function with @scheduler_lock"):
        from shedlock_py.cli.guarded import Guarded  # late: it names signals that Windows lacks

        most = max_recoveries if recover else 0
        guarded = Guarded(request, command, keep_alive=keep_alive, grace=grace, max_recoveries=most)
        with open_store(store, must_be_shared=True) if is_active() else nullcontext() as provider:
            # After open_store(): --store may name a module of the application that calls configure().
            Settings(listeners=(guarded.messages.put, *debug_listeners(ctx))).apply()
            done = guarded.run(provider, wait)
            if isinstance(done, Skipped) and (verbose or is_terminal(sys.stderr)):
                warn(_reason(done, provider))
    sys.exit(skip_exit_code if isinstance(done, Skipped) else done)


def _reason(skipped: Skipped, provider: LockProvider | None) -> str:
    lock = f"{skipped.lock_name!r} is skipped:"
    if skipped.reason == "already_ran":
        return f"{lock} it ran in this period before (--once-per)"
    with suppress(Exception):  # the skip is final, whatever the store replies now
        record = provider.record(skipped.lock_name) if provider else None
        if record and record.is_paused:
            return f"{lock} {printable(record.holder)}, for another {in_words(record.remaining)}"
        if record and record.is_held:
            return f"{lock} held by {holder_of(record)} since {local_time(record.locked_at, record.read_at)}"
    return f"{lock} it was held"
