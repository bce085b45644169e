"""The commands ``release``, ``prune``, ``schema``, ``leader`` and ``demote``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from shlex import quote
from typing import Any

import click

from shedlock_py.cli.common import (
    NO,
    USAGE,
    able_to_forget,
    duration_option,
    fail,
    is_terminal,
    json_option,
    note,
    open_store,
    option,
    print_json,
    printable,
    store_option,
)
from shedlock_py.cli.names import name_argument, record_or_fail
from shedlock_py.election.demotion import Demotion, leader_of
from shedlock_py.election.settings import ElectionDurations
from shedlock_py.model.record import ONCE, LockRecord, names_to_prune
from shedlock_py.operators.changes import prune_as_listed, read_at
from shedlock_py.operators.display import (
    age,
    counted,
    holder_of,
    in_words,
    local_iso,
    pause_in_words,
    utc,
    why_no_leader,
)
from shedlock_py.providers.kit import given_back


@click.command()
@name_argument
@click.option("--force", is_flag=True, help="Free the lock although its task may still run.")
@click.option(
    "--forget-fire-time",
    is_flag=True,
    help="Forget the newest fire time, even if the lock is free. This helps if a replica with a wrong clock set a fire "
    "time in the future.",
)
@store_option
def release(name: str, force: bool, forget_fire_time: bool, store: str | None) -> None:
    """Free a lock whose holder is dead. Exits 1 if nobody holds it.

    If the task still runs, it goes on, and a second task can start beside it. For a paused job, use shedlock resume.

    --forget-fire-time lets the next run take place, even for a fire time that already ran. It needs no --force if the
    lock is free.

    Exits 64 if --force is missing, or the job is paused.
    """
    with open_store(store) as opened:
        provider: Any = able_to_forget(opened) if forget_fire_time else opened
        record = record_or_fail(provider, name)
        if not record.is_held and not forget_fire_time:
            fail(f"lock {name!r} is not held; {holder_of(record)} had it last", NO)
        who = f"{holder_of(record)} for {in_words(age(record))}"
        if record.is_paused:
            fail(f"lock {name!r} is {pause_in_words(record)}; end it with: shedlock resume {quote(name)}", USAGE)
        if record.is_held and not force:
            fail(
                f"lock {name!r} is held by {who}, for another {in_words(record.remaining)} at most; its task may still "
                f"be running, and a second task would start: --force frees it all the same",
                USAGE,
            )
        # Forget before the release, because the next acquire may store its own fire time.
        is_given_back = record.is_held and given_back(record) is not None
        is_forgotten = forget_fire_time and not is_given_back and provider.forget_fire_time(name, record)
        if record.is_held and not provider.force_release(name, record):
            forgotten = "; its fire time is forgotten" if is_forgotten else ""
            changed = f"{holder_of(record)} does not hold lock {name!r} any more, so nothing was freed{forgotten}"
            fail(f"{changed}; look at it again: shedlock show {quote(name)}", NO)
        is_forgotten = is_forgotten or (forget_fire_time and is_given_back)
    if record.is_held:
        click.echo(f"lock {name!r} is free; it was held by {who}")
    if is_forgotten:
        was = f", which was {local_iso(record.last_fire_time)}" if record.last_fire_time else ""
        click.echo(f"the last fire time of lock {name!r} is forgotten{was}")
    elif forget_fire_time:
        fail(f"lock {name!r} has no fire time to forget", NO)


@click.command(short_help="Delete records of unused locks.")
@duration_option(
    "--unused-for",
    zero=True,
    required=True,
    help="Only records that were last held longer ago than this, for example 90d.",
)
@option(
    "--finished",
    is_flag=True,
    help="Also the keys of run_once: their tasks can run again.",
)
@option("--dry-run", is_flag=True, help="Delete nothing; print the names only.")
@click.option("--yes", is_flag=True, help="Do not ask at a terminal.")
@store_option
@json_option
def prune(unused_for: timedelta, finished: bool, dry_run: bool, yes: bool, store: str | None, as_json: bool) -> None:
    """Delete the records of unused locks. Prints their names, and asks at a terminal.

    Jobs are not harmed: their next run makes a new record. But their last fire times are forgotten. Do not prune a
    table that ShedLock for Java also uses: it makes no new record until it is restarted.
    """
    with open_store(store) as opened:
        provider: Any = able_to_forget(opened) if finished else opened
        records = provider.records()
        keys = _old_keys(records, unused_for) if finished else []
        names = sorted([*names_to_prune(records, unused_for), *(key.name for key in keys)])
        if not as_json:
            for name in names:
                click.echo(printable(name))
        number = 0
        if not dry_run and names:
            if not (yes or as_json or _is_agreed(len(names))):
                fail("nothing was deleted", NO)
            for key in keys:  # without that fire time, the record is pruned like other records
                provider.forget_fire_time(key.name, key)
            number = prune_as_listed(provider, unused_for, read_at(records))
    if as_json:
        print_json({"deleted": number, "names": names})
    elif dry_run:
        note(f"would delete {counted(len(names), 'lock record')}")
    else:
        were_used = f" of {len(names)}; the others were used meanwhile" if number < len(names) else ""
        note(f"deleted {counted(number, 'lock record')}{were_used}")


def _is_agreed(number: int) -> bool:
    """Return whether the operator confirms deleting the records. True without a terminal, for cron."""
    return not is_terminal(sys.stdin) or click.confirm(f"Delete {counted(number, 'lock record')}?", err=True)


def _old_keys(records: Sequence[LockRecord], unused_for: timedelta) -> list[LockRecord]:
    """Return the free keys of ``run_once`` that were last held longer ago than ``unused_for``."""
    keys = {record.name: record for record in records if record.last_fire_time == ONCE}
    old = names_to_prune([replace(record, last_fire_time=None) for record in keys.values()], unused_for)
    return [keys[name] for name in old]


@click.command(short_help="Print the SQL of the tables, or create them.")
@option("--create", is_flag=True, help="Create missing tables, columns and indexes.")
@store_option
def schema(create: bool, store: str | None) -> None:
    """Print the SQL that creates the tables, without a connection. --create creates what is missing.

    With ?history=50 in the URL, this includes the table of runs. For another table name, use --store
    pkg.module:provider.
    """
    with open_store(store, may_be_missing=True) as provider:
        create_table_sql = getattr(provider, "create_table_sql", None)
        if create:
            provider.create_schema()
            note(f"the schema of {provider!r} is complete")
        elif create_table_sql is not None:
            click.echo(f"{create_table_sql()};")
        else:
            note(f"{provider!r} needs no table; --create adds its index, if it has one")


@click.command()
@name_argument
@store_option
@json_option
def leader(name: str, store: str | None, as_json: bool) -> None:
    """Show who leads in an election. Exits 1 if nobody leads."""
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
        fail(f"nobody leads in {name!r}: {why_no_leader(record)}", NO)
    click.echo(
        f"{printable(leading.holder)} leads in {printable(name)!r} since {local_iso(leading.locked_at)} "
        f"({in_words(age(leading))}), term {leading.fencing_token}; its lease ends in {in_words(leading.remaining)} "
        f"unless renewed"
    )


@click.command()
@name_argument
@duration_option(
    "--cooldown",
    zero=True,
    default="0s",
    help="How long the demoted node must not become the leader again.",
)
@duration_option(
    "--lease-duration",
    envvar="SHEDLOCK_LEASE_DURATION",
    default="15s",
    help="The lease duration of the electors.",
)
@duration_option(
    "--renew-deadline",
    envvar="SHEDLOCK_RENEW_DEADLINE",
    help="The renew deadline of the electors. Default: two thirds of the lease. With takeover='observed', give their "
    "whole lease.",
)
@store_option
def demote(
    name: str, cooldown: timedelta, lease_duration: timedelta, renew_deadline: timedelta | None, store: str | None
) -> None:
    """Let another node lead. Exits 1 if nobody leads.

    Nobody leads for --renew-deadline, because the demoted leader may trust its lease for so long. If the electors have
    a longer deadline, two nodes can lead at the same time.
    """
    deadline = ElectionDurations.scaled(lease_duration, renew_deadline).renew_deadline
    with open_store(store) as provider:
        former = leader_of(provider.record(name))
        if former is None:
            fail(f"nobody leads in {name!r}", NO)
        request = Demotion(former.holder, cooldown).request(name, deadline)
        provider.take_over(request, former)
    click.echo(
        f"{printable(former.holder)} is demoted: nobody leads in {name!r} for {in_words(request.lock_at_most_for)}, "
        f"then another can{f' (it itself in {in_words(cooldown)})' if cooldown else ''}"
    )
