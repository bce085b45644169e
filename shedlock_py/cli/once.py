"""``shedlock once``: a command that runs once per key in the whole fleet."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from datetime import timedelta
from shlex import quote

import click

from shedlock_py.cli.common import (
    NO,
    NOT_DONE,
    RunCommand,
    duration_option,
    fail,
    grace_option,
    holder_option,
    open_store,
    store_option,
)
from shedlock_py.cli.names import key_argument, record_or_fail
from shedlock_py.errors import ConfigurationError, TaskNotDone
from shedlock_py.events import log_listener
from shedlock_py.model.record import ONCE
from shedlock_py.model.request import LockRequest
from shedlock_py.operators.display import holder_of, in_words
from shedlock_py.provider import LockProvider, can
from shedlock_py.settings.defaults import Settings
from shedlock_py.settings.off_switch import is_active


@click.command(
    cls=RunCommand,
    usage="shedlock once KEY -- COMMAND",
    short_help="Run a command once per key, on all hosts together.",
)
@key_argument
@duration_option(
    "--wait",
    zero=True,
    default="5m",
    help="How long to wait for another host that runs it, and for a store that is unreachable.",
)
@duration_option(
    "--at-most",
    default="1m",
    help="How soon another host takes over if this one dies. The lock is kept alive until the command ends.",
)
@grace_option
@holder_option
@click.option("--forget", is_flag=True, help="Run nothing, and let KEY run again.")
@store_option
@click.pass_context
def once(
    ctx: click.Context,
    name: str,
    wait: timedelta,
    at_most: timedelta,
    grace: timedelta,
    holder: str | None,
    forget: bool,
    store: str | None,
    command: list[str],
) -> None:
    """Run a command once per key on all hosts together. Other hosts wait until it has succeeded.

    All hosts go on when it is done. If COMMAND fails, this host gets its exit code, and the next one tries. If this
    host dies, another takes over when its lease ends. So COMMAND must be idempotent. KEY names it and its version:
    migrate-v42. It is also the lock name, so a job must not use the same name.

    \b
    Exit codes:
      that of COMMAND, if it ran here; 128+N if signal N ended it
      0    done, here or by another host
      1    --forget: there is nothing to forget
      64   wrong usage; --forget: it runs
      69   the store failed, or did not reply for all of --wait; COMMAND did not run
      70   a mistake in shedlock_py itself
      75   the lease was lost, and COMMAND was ended
      78   configuration: the store's URL, a missing package, KEY is the lock name of a job
      124  not done within --wait, or nobody can know whether it is done
      126  COMMAND is not executable
      127  COMMAND was not found
      128+N  signal N came before COMMAND was started
    """
    if forget:
        if command:
            raise click.UsageError("--forget runs no command", ctx)
        with open_store(store) as provider:
            _forget(provider, name, ctx)
        return
    if not hasattr(os, "posix_spawn"):
        raise ConfigurationError("shedlock once needs Linux, macOS or another Unix; here, call run_once() in Python")
    from shedlock_py.guard.once import refuse_unfilled  # late: --forget does without it

    try:
        refuse_unfilled(name)
        request = LockRequest(name, at_most, 0, holder or None, fire_time=ONCE)
    except ConfigurationError as error:
        raise click.UsageError(str(error), ctx) from error
    from shedlock_py.cli.child import CannotStart  # late: they name signals that Windows does not have
    from shedlock_py.cli.guarded import GuardedOnce

    debug = (log_listener,) if ctx.find_root().params.get("debug") else ()
    try:
        guarded = GuardedOnce(request, command, keep_alive=True, grace=grace)
        with open_store(store) if is_active() else nullcontext() as opened:
            if not getattr(opened, "is_shared", True):
                raise ConfigurationError(
                    "locks in memory are private to this process, so they lock nothing here; take sqlite:///file"
                )
            Settings(listeners=(guarded.messages.put, *debug), holder=holder or None).apply()
            code = guarded.run(opened, wait)
            assert isinstance(code, int)  # it is never skipped
    except CannotStart as error:
        fail(str(error), error.code)
    except TaskNotDone as error:
        fail(str(error), NOT_DONE)
    sys.exit(code)


def _forget(provider: LockProvider, key: str, ctx: click.Context) -> None:
    if not can(provider, "forget_fire_time"):
        raise ConfigurationError(f"{provider!r} cannot forget a fire time: it has no forget_fire_time()")
    record = record_or_fail(provider, key)
    if record.last_fire_time != ONCE:
        fail(f"{key!r} is not done, nor did it begin: there is nothing to forget", NO)
    if record.is_held:
        held = f"{holder_of(record)} has {key!r} for another {in_words(record.remaining)} unless extended"
        raise click.UsageError(f"{held}: wait for its end", ctx)
    if not provider.forget_fire_time(key, record):  # type: ignore[attr-defined]  # looked up above
        fail(f"{key!r} has changed meanwhile: nothing was forgotten; see: shedlock show {quote(key)}", NO)
    click.echo(f"{key!r} can run again; {holder_of(record)} had it last")
