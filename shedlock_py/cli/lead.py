"""``shedlock lead``: a command that runs on one node at a time, while other nodes stand by."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from shedlock_py.cli.common import (
    RunCommand,
    debug_listeners,
    duration_option,
    one_line,
    open_store,
    option,
    store_option,
    unix_command,
    usage_errors,
    warn,
)
from shedlock_py.cli.names import name_argument
from shedlock_py.election.elector import LeaderElector
from shedlock_py.election.settings import ElectionDurations, Takeover
from shedlock_py.errors import ProviderUnreachable
from shedlock_py.provider import LockProvider
from shedlock_py.settings.defaults import Settings
from shedlock_py.settings.off_switch import is_active

if TYPE_CHECKING:
    from shedlock_py.cli.leading import OnExit


@click.command(
    cls=RunCommand, usage="shedlock lead NAME -- COMMAND", short_help="Run a command on the node that leads."
)
@name_argument
@duration_option(
    "--lease-duration",
    envvar="SHEDLOCK_LEASE_DURATION",
    default="15s",
    help="How long the store keeps the lease of a silent leader; then another node leads. Give every node the same "
    "--lease-duration, --renew-deadline and --retry-period.",
)
@duration_option(
    "--renew-deadline",
    envvar="SHEDLOCK_RENEW_DEADLINE",
    help="How long a leader trusts its lease without a renewal. COMMAND is ended before this time is over. Default: "
    "two thirds of --lease-duration; maximum: 90 % of it.",
)
@duration_option(
    "--retry-period",
    help="How often a leader renews its lease, and the other nodes read the record. Default: a fifth of "
    "--renew-deadline.",
)
@duration_option(
    "--grace",
    zero=True,
    help="How long COMMAND may take to end when the leadership is lost. It gets SIGTERM this long before "
    "--renew-deadline is over, and then SIGKILL. Default: two fifths of --renew-deadline.",
)
@option(
    "--takeover",
    type=click.Choice(["expired", "observed"]),
    default="expired",
    show_default=True,
    help="How this node finds out that a lease has ended: by the store's clock (expired), or by its own clock, when "
    "the record has not changed for the whole lease (observed).",
)
@option(
    "--on-exit",
    type=click.Choice(["exit", "resign", "stay"]),
    default="exit",
    show_default=True,
    help="When COMMAND ends by itself: hand over and exit with its exit code (exit), hand over and stand by (resign), "
    "or go on leading without it (stay).",
)
@option(
    "--health-port",
    envvar="SHEDLOCK_HEALTH_PORT",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Serve health checks: GET / is 200 while this node takes part, GET /leader is 200 while it leads; else 503.",
)
@option(
    "--health-host",
    envvar="SHEDLOCK_HEALTH_HOST",
    show_default="127.0.0.1",
    metavar="ADDRESS",
    help="The address of the health checks. A Kubernetes probe comes from outside the pod: it needs ::, all addresses.",
)
@option("--holder", envvar="SHEDLOCK_HOLDER", help="The name of this node, shown to people. Default: host:pid.")
@store_option
@click.pass_context
def lead(
    ctx: click.Context,
    name: str,
    lease_duration: timedelta,
    renew_deadline: timedelta | None,
    retry_period: timedelta | None,
    grace: timedelta | None,
    takeover: Takeover,
    on_exit: OnExit,
    health_port: int | None,
    health_host: str | None,
    holder: str | None,
    store: str | None,
    command: list[str],
) -> None:
    """Keep a command running on one host. The other hosts stand by.

    For a program that must always run, but never twice: a scheduler, a consumer of a feed. Start shedlock lead on two
    nodes or more; one node runs COMMAND. If that node dies, another node starts COMMAND after --lease-duration at the
    latest. If that node is stopped, another node starts COMMAND after --retry-period. COMMAND finds SHEDLOCK_TERM, the
    fencing token of the leadership, in its environment.

    Standard streams, arguments, environment and signals are passed through. SIGTERM, Ctrl-C and SIGQUIT end COMMAND,
    and then this node.

    \b
    Exit codes:
      the exit code of COMMAND; 128+N if signal N ended it
      64   wrong usage
      69   the store failed for a lasting reason, such as a missing table
      70   a bug in shedlock_py
      78   configuration: the store's URL, a missing package
      126  COMMAND is not executable
      127  COMMAND was not found
      128+N  signal N came while this node was standing by
    """
    with usage_errors(ctx):
        durations = durations_of(lease_duration, renew_deadline, retry_period, grace)
    with unix_command(ctx, "use LeaderElector in Python"):
        from shedlock_py.cli.leading import Leading  # late: it names signals that Windows lacks

        leading = Leading(name, command, grace=durations.grace, on_exit=on_exit)
        with _open(store) as provider:
            Settings(listeners=(leading.messages.put, *debug_listeners(ctx))).apply()
            with usage_errors(ctx):
                elector = LeaderElector(
                    provider, name, lease_duration=durations.lease_duration, renew_deadline=durations.renew_deadline,
                    retry_period=durations.retry_period, holder=holder or None, takeover=takeover,
                )  # fmt: skip
            _check(provider, name)
            with _health(elector, health_host, health_port):
                code = leading.run(elector)
    sys.exit(code)


def durations_of(
    lease: timedelta, deadline: timedelta | None, retry: timedelta | None, grace: timedelta | None
) -> ElectionDurations:
    """Return the durations of a node. Durations that are not given follow from the lease in proportion.

    :raises ConfigurationError: two commands could run at once, or one failed renewal would end the command.
    """
    durations = ElectionDurations.scaled(lease, deadline, retry)
    durations = replace(durations, grace=durations.renew_deadline * 2 / 5 if grace is None else grace)
    durations.check(as_options=True)
    return durations


def _open(store: str | None) -> AbstractContextManager[LockProvider]:
    """Open the provider of the election. While locking is switched off, this node is alone and leads at once."""
    if is_active():
        return open_store(store, must_be_shared=True)
    from shedlock_py.providers.memory import InMemoryLockProvider  # late: for a developer's machine only

    return nullcontext(InMemoryLockProvider())


def _check(provider: LockProvider, name: str) -> None:
    """Read the record once: an elector would retry for ever, even if the table is missing.

    :raises ProviderError: the store fails for a lasting reason.
    """
    try:
        provider.record(name)
    except ProviderUnreachable as error:
        warn(f"election {name!r}: the store does not reply, trying again: {one_line(error)}")


def _health(elector: LeaderElector, host: str | None, port: int | None) -> AbstractContextManager[None]:
    if port is None:
        return nullcontext()
    from shedlock_py.cli.health import served  # late: http.server is slow to import

    return served(elector, host, port)
