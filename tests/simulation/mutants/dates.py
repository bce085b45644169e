"""Faults of the compare-and-swap stores and of DynamoDB: in writes, in conditions, and in the time they use.

Most mutants change a command of the real program on its way to the store, or the reply to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from shedlock_py import LockRecord
from shedlock_py.model.lease import Claim, Lease
from shedlock_py.providers.cas import CasPrograms, Read, ServerTime, Write
from shedlock_py.providers.cas.server_time import token_at
from shedlock_py.providers.dynamodb.dynamodb_programs import DynamoDBPrograms
from shedlock_py.providers.dynamodb.wire import Change as Update
from tests.simulation.mutants.mutant import Change, mutate

Carry = Callable[[Any], Any]
"""A program that carries out one command in its own way, and returns the reply."""

_cas = partial(mutate, CasPrograms, part="compare and swap", store="cas")
_dynamodb = partial(mutate, DynamoDBPrograms, part="DynamoDB", store="dynamodb")
_ALWAYS = "attribute_exists(lockUntil)"


def _with(program: Any, carry_out: Carry) -> Any:
    """Return ``program``, with ``carry_out`` for each of its commands."""
    try:
        command = next(program)
        while True:
            try:
                reply = yield from carry_out(command)
            except Exception as error:
                command = program.throw(error)
            else:
                command = program.send(reply)
    except StopIteration as stop:
        return stop.value


def _is_grant(command: Any) -> bool:
    return isinstance(command, Write) and not command.is_free


# Compare and swap


def _in_any_case(command: Any) -> Any:
    """Write over any version."""
    if isinstance(command, Write) and command.if_version is not None:
        newest = (yield Read(command.record.name)).value
        command = replace(command, if_version=newest and newest.version)
    return (yield command)


@_cas("claim", kind="retries")
def a_grant_is_written_without_the_version(original: Change, programs: CasPrograms, claim: Claim, **how: Any) -> Any:
    """A claim writes over any version that the store has by then."""
    return _with(original(programs, claim, **how), _in_any_case)


@_cas("set_end", kind="operators")
def a_hold_is_written_without_the_version(
    original: Change, programs: CasPrograms, lease: Lease, lock_for: timedelta, *, releasing: bool
) -> Any:
    """An extension or a release writes over any version that the store has by then."""
    return _with(original(programs, lease, lock_for, releasing=releasing), _in_any_case)


@_cas("claim", kind="locks")
def any_conflict_passes_for_a_grant(original: Change, programs: CasPrograms, claim: Claim, **how: Any) -> Any:
    """A refused write passes for a repeated write: the lock counts as granted."""

    def carry_out(command: Any) -> Any:
        reply = yield command
        return reply._replace(value=0) if _is_grant(command) and reply.value is None else reply

    return _with(original(programs, claim, **how), carry_out)


@_cas("claim", kind="retries")
def a_conflict_with_itself_is_no_grant(original: Change, programs: CasPrograms, claim: Claim, **how: Any) -> Any:
    """A repeated acquire finds its own claim in the record, and reports a skip."""

    def carry_out(command: Any) -> Any:
        reply = yield command
        if isinstance(command, Read) and reply.value is not None and reply.value.record.locked_by == claim.locked_by:
            other = replace(reply.value.record, locked_by="")
            return reply._replace(value=replace(reply.value, record=other))
        return reply

    return _with(original(programs, claim, **how), carry_out)


def _with_token(
    original: Change,
    programs: CasPrograms,
    claim: Claim,
    how: dict[str, Any],
    token_of: Callable[[LockRecord | None, LockRecord], int | None],
) -> Any:
    """Grant a different token. ``token_of`` gets the previous and the new record."""
    former: LockRecord | None = None
    token: int | None = None

    def carry_out(command: Any) -> Any:
        nonlocal former, token
        if _is_grant(command):
            token = token_of(former, command.record)
            command = replace(command, record=replace(command.record, fencing_token=token))
        reply = yield command
        if isinstance(command, Read):
            former = reply.value and reply.value.record
        return reply

    granted = yield from _with(original(programs, claim, **how), carry_out)
    claim.note = None  # it has the right token
    return granted if granted is None or token is None else token


@_cas("claim", kind="operators")
def tokens_from_the_date_only(original: Change, programs: CasPrograms, claim: Claim, **how: Any) -> Any:
    """The fencing token is the date of the reply, whatever token the record has."""
    return _with_token(original, programs, claim, how, lambda former, record: token_at(record.read_at))


@_cas("claim", kind="operators")
def a_take_over_keeps_the_token(original: Change, programs: CasPrograms, claim: Claim, **how: Any) -> Any:
    """A take-over gets the token of the previous holder."""
    if not how["force"]:
        return original(programs, claim, **how)
    return _with_token(
        original, programs, claim, how, lambda former, record: (former and former.fencing_token) or record.fencing_token
    )


@_cas("claim", kind="operators")
def tokens_without_the_date(original: Change, programs: CasPrograms, claim: Claim, **how: Any) -> Any:
    """The fencing token counts from the record only: a pruned name begins again."""
    return _with_token(
        original, programs, claim, how, lambda former, record: ((former and former.fencing_token) or 0) + 1
    )


@mutate(ServerTime, "latest", kind="retries", part="compare and swap", store="cas")
def the_date_is_not_rounded_up(latest: Change, time: ServerTime, now: float) -> datetime:
    """Writes use the earliest possible time."""
    return time.earliest(now)


@_cas("claim", kind="locks")
def the_local_clock_decides(original: Change, programs: CasPrograms, claim: Claim, **how: Any) -> Any:
    """A claim uses its own clock, which may be half a minute wrong, instead of the date of the reply."""

    def carry_out(command: Any) -> Any:
        reply = yield command
        wrong = timedelta(seconds=programs.clock() % 60 - 30)
        return reply._replace(time=replace(reply.time, date=reply.time.date + wrong))

    return _with(original(programs, claim, **how), carry_out)


@_cas("__init__", kind="locks")
def the_clock_error_is_not_added(init: Change, programs: CasPrograms, **options: Any) -> None:
    """A lease ends by the clock of the front end that has granted it."""
    init(programs, **{**options, "clock_error": 0})


# DynamoDB


def _without(part: str, command: Any) -> Any:
    """Carry ``command`` out without ``part`` of its condition."""
    if isinstance(command, Update) and part in command.condition:
        command = replace(command, condition=command.condition.replace(part, _ALWAYS))
    return (yield command)


@_dynamodb("claim", kind="operators")
def a_take_over_keeps_the_token_of_the_item(
    original: Change, programs: DynamoDBPrograms, claim: Claim, *, before: LockRecord | None, force: bool
) -> Any:
    """A take-over gets the token of the previous holder."""
    token = None

    def carry_out(command: Any) -> Any:
        nonlocal token
        if isinstance(command, Update) and "before" in command.values:
            token = command.values["before"]
            command = replace(command, values={**command.values, "fencingToken": token})
        return (yield command)

    granted = yield from _with(original(programs, claim, before=before, force=force), carry_out)
    return granted if granted is None or token is None else token


@_dynamodb("claim", kind="locks")
def a_claim_does_not_ask_whether_it_is_held(
    original: Change, programs: DynamoDBPrograms, claim: Claim, **how: Any
) -> Any:
    """A claim compares only the token, which is greater if the clock goes on."""
    return _with(original(programs, claim, **how), partial(_without, "lockUntil <= :now"))


@_dynamodb("claim", kind="locks")
def the_latest_time_decides(original: Change, programs: DynamoDBPrograms, claim: Claim, **how: Any) -> Any:
    """A claim compares the end of the lease with the latest possible time."""

    def carry_out(command: Any) -> Any:
        if isinstance(command, Update) and "now" in command.values:
            now = datetime.fromisoformat(str(command.values["now"])) + programs.clock_error + timedelta(seconds=1)
            values = {**command.values, "now": now.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"}
            command = replace(command, values=values)
        return (yield command)

    return _with(original(programs, claim, **how), carry_out)


@_dynamodb("claim", kind="retries")
def an_own_item_is_no_grant(original: Change, programs: DynamoDBPrograms, claim: Claim, **how: Any) -> Any:
    """A repeated acquire finds its own claim in the item, and reports a skip."""

    def carry_out(command: Any) -> Any:
        reply = yield command
        if reply.entry is not None and reply.entry.record.locked_by == claim.locked_by:
            other = replace(reply.entry.record, locked_by="")
            return reply._replace(entry=replace(reply.entry, record=other))
        return reply

    return _with(original(programs, claim, **how), carry_out)


@_dynamodb("undo_claim", kind="locks")
def an_undo_by_name(
    original: Change, programs: DynamoDBPrograms, name: str, locked_by: str, former_fire_time: datetime | None
) -> Any:
    """An undo frees the lock even if another holder has it."""
    return _with(original(programs, name, locked_by, former_fire_time), partial(_without, "lockedBy = :lockedBy"))


@_dynamodb("__init__", kind="locks")
def dynamodb_without_the_clock_error(init: Change, programs: DynamoDBPrograms, table: str, **options: Any) -> None:
    """A lease ends by the clock of the front end that has granted it."""
    init(programs, table, **{**options, "clock_error": 0})
