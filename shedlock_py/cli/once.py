"""``shedlock once``: a command that runs once per key in the whole fleet."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from datetime import timedelta
from shlex import quote
from typing import Any

import click

from shedlock_py.cli.common import (
    NO,
    NOT_DONE,
    RunCommand,
    able_to_forget,
    debug_listeners,
    duration_option,
    fail,
    grace_option,
    holder_option,
    open_store,
    store_option,
    unix_command,
    usage_errors,
)
from shedlock_py.cli.names import key_argument, record_or_fail
from shedlock_py.errors import TaskNotDone
from shedlock_py.model.record import ONCE
from shedlock_py.model.request import LockRequest
from shedlock_py.operators.display import holder_of, in_words
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
    help="How long to wait while another host runs COMMAND or the store is unreachable.",
)
@duration_option(
    "--at-most",
    default="1m",
    help="How soon another host takes over if this host dies. The lock is kept alive until COMMAND ends.",
)
@grace_option
@holder_option
@click.option("--forget", is_flag=True, help="Run nothing, and forget that KEY is done: it can run again.")
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

    When COMMAND is done, all hosts go on. If COMMAND fails, this host gets its exit code, and the next host tries. If
    this host dies, another host takes over when the lease ends. So COMMAND must be idempotent.

    KEY names COMMAND and its version, for example migrate-v42. KEY is also the lock name: no job may use the same name.

    \b
    Exit codes:
      the exit code of COMMAND, if it ran here; 128+N if signal N ended it
      0    done, here or by another host
      1    nothing to forget (--forget)
      64   wrong usage, or --forget while COMMAND runs
      69   the store failed, or did not reply within --wait; COMMAND did not run
      70   a bug in shedlock_py
      75   the lease was lost, and COMMAND was ended
      78   configuration: the store's URL, a missing package, KEY is the lock name of a job
      124  not done within --wait, or it is unknown whether it is done
      126  COMMAND is not executable
      127  COMMAND was not found
      128+N  signal N came before COMMAND started
    """
    if forget:
        if command:
            raise click.UsageError("--forget runs no command", ctx)
        with open_store(store) as provider:
            _forget(able_to_forget(provider), name, ctx)
        return
    from shedlock_py.guard.once import refuse_unfilled  # late: --forget does not need it

    with usage_errors(ctx):
        refuse_unfilled(name)
        request = LockRequest(name, at_most, 0, holder or None, fire_time=ONCE)
    with unix_command(ctx, "call run_once() in Python"):
        from shedlock_py.cli.guarded import GuardedOnce  # late: it names signals that Windows lacks

        guarded = GuardedOnce(request, command, keep_alive=True, grace=grace)
        with open_store(store, must_be_shared=True) if is_active() else nullcontext() as opened:
            Settings(listeners=(guarded.messages.put, *debug_listeners(ctx)), holder=holder or None).apply()
            try:
                code = guarded.run(opened, wait)
            except TaskNotDone as error:
                fail(str(error), NOT_DONE)
            assert isinstance(code, int)  # run_once() never skips
    sys.exit(code)


def _forget(provider: Any, key: str, ctx: click.Context) -> None:
    record = record_or_fail(provider, key)
    if record.last_fire_time != ONCE:
        fail(f"{key!r} is not done and does not run: there is nothing to forget", NO)
    if record.is_held:
        held = f"{holder_of(record)} has {key!r} for another {in_words(record.remaining)} unless extended"
        raise click.UsageError(f"{held}: wait until it ends", ctx)
    if not provider.forget_fire_time(key, record):
        fail(f"{key!r} has changed meanwhile: nothing was forgotten; see: shedlock show {quote(key)}", NO)
    click.echo(f"{key!r} can run again; {holder_of(record)} had it last")
