"""The commands that mend: ``release``, ``prune``, ``schema``, ``leader`` and ``demote``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta

import click

from shedlock_py.cli.common import (
    NO,
    USAGE,
    DurationType,
    fail,
    json_option,
    open_store,
    option,
    print_json,
    printable,
    store_option,
)
from shedlock_py.cli.show import name_argument, record_or_fail
from shedlock_py.cli.tables import age, demoted_leader, holder_of, in_words, local_iso, utc
from shedlock_py.election.demotion import Demotion, leader_of
from shedlock_py.errors import ConfigurationError
from shedlock_py.provider import LockProvider
from shedlock_py.record import LockRecord

TIGHT = 1.25
"""A bound of a lease is good enough if it is no more than this much longer than what is left of it."""


@click.command()
@name_argument
@click.option("--force", is_flag=True, help="Free it although its task may be running. Has no variable, on purpose.")
@click.option(
    "--forget-fire-time",
    is_flag=True,
    help="Forget its newest fire time, also of a lock that is free: for one that lies in the future because a "
    "replica's clock was wrong. Has no variable, on purpose.",
)
@store_option
def release(name: str, force: bool, forget_fire_time: bool, store: str | None) -> None:
    """Free the lock NAME, whoever holds it.

    For a lock whose holder is known to be dead. A task that still runs goes on: it notices at its next extension, or
    not at all, and meanwhile another can start.

    With --forget-fire-time the next run takes place whatever its fire time or its period of --once-per: also one that
    has run before. A lock that is free needs no --force for that.

    Exit code 1: it is not held, or has no fire time to forget. 64: --force is missing.
    """
    with open_store(store) as provider:
        forget = _forgetter(provider) if forget_fire_time else None
        record = record_or_fail(provider, name)
        if not record.is_held and forget is None:
            fail(f"lock {name!r} is not held; {holder_of(record)} had it last", NO)
        who = f"{holder_of(record)} for {in_words(age(record))}"
        if record.is_held and not force:
            fail(
                f"lock {name!r} is held by {who}, for another {in_words(record.remaining)} at most; its task may still "
                f"be running and a second one would start: --force frees it all the same",
                USAGE,
            )
        # Before it is freed: what is acquired afterwards has a fire time of its own.
        is_forgotten = forget is not None and forget(name)
        if record.is_held and not provider.force_release(name):
            forgotten = "; its fire time is forgotten" if is_forgotten else ""
            fail(f"lock {name!r} is not held any more{forgotten}", NO)
    if record.is_held:
        click.echo(f"lock {name!r} is free; it was held by {who}")
    if is_forgotten:
        was = f", which was {local_iso(record.last_fire_time)}" if record.last_fire_time else ""
        click.echo(f"the last fire time of lock {name!r} is forgotten{was}")
    elif forget is not None:
        fail(f"lock {name!r} has no fire time to forget", NO)


def _forgetter(provider: LockProvider) -> Callable[[str], bool]:
    """:raises ConfigurationError: the provider cannot forget a fire time; nothing has been done yet."""
    forget: Callable[[str], bool] | None = getattr(provider, "forget_fire_time", None)
    if forget is None:
        raise ConfigurationError(f"{provider!r} cannot forget a fire time: it has no forget_fire_time()")
    return forget


@click.command(short_help="Delete records that were not used for long.")
@option(
    "--unused-for",
    envvar="SHEDLOCK_PRUNE_UNUSED_FOR",
    type=DurationType(zero=True),
    required=True,
    help="Only those that were last held longer than this ago, as 90d.",
)
@option("--dry-run", envvar="SHEDLOCK_PRUNE_DRY_RUN", is_flag=True, help="Delete nothing, name what would be deleted.")
@store_option
@json_option
def prune(unused_for: timedelta, dry_run: bool, store: str | None, as_json: bool) -> None:
    """Delete the records of locks that are free and were not used for a long time.

    Does no harm to tasks: the next acquisition makes a new record. But last fire times are forgotten. Not for a SQL
    table that ShedLock for Java uses as well: it remembers which records it made, and makes no new one until restarted.
    """
    with open_store(store) as provider:
        if dry_run:
            names = [record.name for record in provider.records() if record.lock_until <= record.read_at - unused_for]
            number = len(names)
        else:
            names, number = [], provider.prune(unused_for)
    if as_json:
        print_json({"deleted": 0 if dry_run else number, "would_delete": names if dry_run else None})
        return
    for name in names:
        click.echo(printable(name))
    done = "would delete" if dry_run else "deleted"
    click.echo(f"{done} {number} lock record{'' if number == 1 else 's'}", err=dry_run)


@click.command(short_help="Print the SQL of the lock table, or run it.")
@option("--create", envvar="SHEDLOCK_SCHEMA_CREATE", is_flag=True, help="Create it, if it is missing.")
@store_option
def schema(create: bool, store: str | None) -> None:
    """Print the SQL that creates the lock table, without asking the database.

    For another table name or schema, let --store refer to a provider of yours: pkg.module:provider.
    """
    with open_store(store, may_be_missing=True) as provider:
        create_table_sql = getattr(provider, "create_table_sql", None)
        if create:
            provider.create_schema()
            click.echo(f"all that {provider!r} needs is there", err=True)
        elif create_table_sql is not None:
            click.echo(f"{create_table_sql()};")
        else:
            click.echo(f"{provider!r} needs no table: nothing need be created{_besides(provider)}", err=True)


def _besides(provider: LockProvider) -> str:
    if type(provider).__module__.startswith("shedlock_py.providers."):
        is_mongodb = type(provider).__module__.startswith("shedlock_py.providers.mongodb")
        return "; --create adds the index by which MongoDB removes old records" if is_mongodb else ""
    return "; --create calls its create_schema()"


@click.command()
@name_argument
@store_option
@json_option
def leader(name: str, store: str | None, as_json: bool) -> None:
    """Show who leads in the election NAME.

    Exit code 1: nobody.
    """
    with open_store(store) as provider:
        record = provider.record(name)
    leading = leader_of(record)
    if as_json:
        print_json({
            "name": name,
            "leader": leading.holder if leading else None,
            "term": leading.fencing_token if leading else None,
            "since": utc(leading.locked_at) if leading else None,
            "lock_until": utc(leading.lock_until) if leading else None,
            "remaining": leading.remaining.total_seconds() if leading else None,
        })  # fmt: skip
        sys.exit(0 if leading else NO)
    if leading is None:
        fail(f"nobody leads in {name!r}{_why(record)}", NO)
    click.echo(
        f"{printable(leading.holder)} leads in {printable(name)!r} since {local_iso(leading.locked_at)} "
        f"({in_words(age(leading))}), term {leading.fencing_token}; its lease ends in {in_words(leading.remaining)} "
        f"unless renewed"
    )


def _why(record: LockRecord | None) -> str:
    if record is None:
        return ", nor ever did"
    demoted = demoted_leader(record)
    if record.is_held and demoted is not None:
        return f": {printable(demoted)} was demoted, the next can lead in {in_words(record.remaining)}"
    return f"; {holder_of(record)} did until {local_iso(record.lock_until)}"


@click.command()
@name_argument
@option(
    "--cooldown",
    envvar="SHEDLOCK_DEMOTE_COOLDOWN",
    type=DurationType(zero=True),
    default="0s",
    show_default=True,
    help="For how long the demoted node does not stand for election.",
)
@option(
    "--renew-deadline",
    envvar="SHEDLOCK_DEMOTE_RENEW_DEADLINE",
    type=DurationType(),
    help="As the electors were given it, if you know: then there is no need to watch for a renewal.",
)
@store_option
def demote(name: str, cooldown: timedelta, renew_deadline: timedelta | None, store: str | None) -> None:
    """Force a re-election in the election NAME, whoever leads.

    How long the leader may believe that it leads is not in the store. So this watches until the leader renews, which
    shows how long its lease is; takes the lease away; and keeps the name free of leaders for so long. Ctrl-C before
    that changes nothing.

    Exit code 1: nobody leads, or the leader's lease ended meanwhile.
    """
    with open_store(store) as provider:
        former = leader_of(provider.record(name))
        if former is None:
            fail(f"nobody leads in {name!r}", NO)
        free_for = _longest_belief(provider, former) if renew_deadline is None else renew_deadline
        request = Demotion(former.holder, cooldown).request(name, free_for)
        provider.take_over(request)
    click.echo(
        f"{printable(former.holder)} is demoted: nobody leads in {name!r} for {in_words(request.lock_at_most_for)}, "
        f"then another can{f' (it itself in {in_words(cooldown)})' if cooldown else ''}"
    )


def _longest_belief(provider: LockProvider, former: LockRecord) -> timedelta:
    """An upper bound of the leader's whole lease, which it may renew until the very moment of the take-over.

    What is left of the lease would not do: a renewal between our look and the take-over makes the leader believe for
    longer than that. Its lease cannot be longer than from the acquisition to its end, nor, once a renewal was seen,
    than from the look before that renewal to its end. It is good enough when it is about what is left anyway.
    """
    longest = former.lock_until - former.locked_at
    record = former
    if longest > record.remaining * TIGHT:
        ends = in_words(record.remaining)
        click.echo(f"waiting until {printable(former.holder)} renews its lease, or that ends in {ends}", err=True)
    while longest > record.remaining * TIGHT:
        time.sleep(min(0.1, max(0.005, record.remaining.total_seconds() / 20)))
        before, now = record, leader_of(provider.record(former.name))
        if now is None or now.locked_by != former.locked_by:
            fail(f"{printable(former.holder)} does not lead in {former.name!r} any more: nothing to do", NO)
        if now.lock_until > before.lock_until:
            longest = min(longest, now.lock_until - before.read_at)
        record = now
    return longest
