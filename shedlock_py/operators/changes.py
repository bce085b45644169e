"""Changes by operators on the page and in Django's admin: the consequence in words, the change, and its event.

A change acts on the acquisition that the form has shown, in one atomic step. If the store has another acquisition by
then, nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from shedlock_py.election.demotion import Demotion, leader_of
from shedlock_py.errors import ProviderError, ProviderUnreachable
from shedlock_py.events import OperatorActed, OperatorAction
from shedlock_py.model.durations import parse_duration
from shedlock_py.model.record import LockRecord, names_to_prune
from shedlock_py.operators import display
from shedlock_py.provider import LockProvider, can
from shedlock_py.settings.emit import emit

ACTIONS: tuple[OperatorAction, ...] = get_args(OperatorAction)
MOST_NAMES = 20
"""The most names that the confirmation of a prune shows."""


class NotDone(Exception):
    """A change was not made. The message says why, for people."""


@dataclass(frozen=True)
class Field:
    name: str
    label: str
    value: str
    hint: str = ""


@dataclass(frozen=True)
class Confirmation:
    """The question that an operator must confirm."""

    title: str
    button: str
    consequence: str
    fields: tuple[Field, ...] = ()
    seen: str = ""
    """The state that the confirmation has shown. If the store has another state by then, nothing changes."""
    details: tuple[str, ...] = ()


def confirmation(provider: Any, action: OperatorAction, name: str, values: Mapping[str, str]) -> Confirmation:
    """Return the confirmation of ``action``.

    :raises NotDone: the action is not possible.
    """
    if action == "prune":
        return _prune_confirmation(provider, values)
    record = provider.record(name)
    if record is None and action != "pause":
        raise NotDone(f"The store has no lock {display.printable(name)!r}.")
    return _CONFIRMATIONS[action](record, display.printable(name), values)


def carry_out(provider: Any, action: OperatorAction, name: str, values: Mapping[str, str], by: str) -> str:
    """Make the change, and emit its event. Return a description of the change for people.

    :raises NotDone: the change was not made.
    :raises ConfigurationError: a value cannot work.
    """
    details = _prune(provider, values) if action == "prune" else _CHANGES[action](provider, name, values, by)
    emit(OperatorActed("" if action == "prune" else name, action, by, details))
    return details


def refuse(provider: LockProvider, action: OperatorAction, name: str, elections: Collection[str]) -> None:
    """Refuse to demote a job, to free a leader by force, and to end a pause by force.

    A demotion's record may be freed: the confirmation shows the danger.

    :param elections: the lock names of elections. A record looks the same for a leader and for a running job.
    :raises NotDone: the action is refused.
    """
    if action == "demote" and name not in elections:
        raise NotDone(
            f"{display.printable(name)} is not known to be an election, and a job cannot be demoted. If it is "
            f"an election, name it: shedlock page --election NAME, or page_app(…, elections=[…])."
        )
    record = provider.record(name) if action == "force_release" else None
    if record is not None and record.is_paused:
        raise NotDone(f"{display.printable(name)} is {display.pause_in_words(record)}. Use Resume instead.")
    if record is not None and name in elections and leader_of(record) is not None:
        raise NotDone(
            f"{display.printable(name)} has a leader, and another node would lead beside it. Demote it "
            f"instead: shedlock demote, or on the page"
        )


# Pause and resume


def _pause_confirmation(record: LockRecord | None, name: str, values: Mapping[str, str]) -> Confirmation:
    runs = ""
    if record is None:
        runs = f" The store has no lock {name} yet: check that the job uses exactly this name."
    elif record.is_paused:
        runs = f" It is {display.pause_in_words(record)}; the new pause replaces it."
    elif record.is_held:
        runs = f" {display.running_in_words(record)}: it cannot be paused before this run ends."
    return Confirmation(
        f"Pause {name}",
        "Pause",
        f"No replica starts {name} until the pause ends, even after a restart. Missed runs are not "
        f"repeated. A job that runs now keeps its lock.{runs}",
        (
            Field("for", "For how long", values.get("for", "1h"), "10m, 2h, 3d; then it ends by itself"),
            Field("why", "Why", values.get("why", ""), "shown to people"),
        ),
        seen=_seen(record) if record is not None and record.is_paused else "",
    )


def _pause(provider: Any, name: str, values: Mapping[str, str], by: str) -> str:
    if not can(provider, "pause"):
        raise NotDone("This provider cannot pause a lock.")
    lasts = parse_duration(values.get("for", ""), "for how long")
    before = provider.record(name)
    if before is not None and before.is_paused and _seen(before) != values.get("seen"):
        raise NotDone(
            f"{display.printable(name)} was paused meanwhile: it is {display.pause_in_words(before)}. Confirm again to "
            f"replace this pause."
        )
    try:
        record: LockRecord = provider.pause(name, lasts, values.get("why", ""), by=by, expected=before)
    except ProviderUnreachable:
        raise
    except ProviderError as error:
        raise NotDone(display.printable(display.one_line(error))) from error
    if not record.is_paused:
        raise NotDone(
            f"{display.printable(name)} is not paused: {display.running_in_words(record)}. Try again when it has "
            f"ended, or wait for it with: shedlock pause NAME --for 2h --wait 10m"
        )
    return display.pause_in_words(record)


def _resume_confirmation(record: LockRecord, name: str, values: Mapping[str, str]) -> Confirmation:
    if not record.is_paused:
        raise NotDone(f"{name} is not paused.")
    return Confirmation(
        f"Resume {name}",
        "Resume",
        f"{name} is {display.pause_in_words(record)}. After this, the next run takes place at its next time.",
        seen=_seen(record),
    )


def _resume(provider: Any, name: str, values: Mapping[str, str], by: str) -> str:
    record = _unchanged(provider, name, values)
    if not can(provider, "resume") or not provider.resume(name, record):
        raise NotDone(f"{display.printable(name)} is not paused any more.")
    return f"it was {display.pause_in_words(record)}" if record.pause else ""


# Force release, demote


def _release_confirmation(record: LockRecord, name: str, values: Mapping[str, str]) -> Confirmation:
    if not record.is_held:
        raise NotDone(f"{name} is not held.")
    if (demotion := Demotion.from_record(record)) is not None:
        consequence = (
            f"{display.printable(demotion.leader)} was demoted, and may trust its lease for another "
            f"{display.in_words(record.remaining)}. If another node leads before that, two can lead at the same time."
        )
    else:
        consequence = (
            f"{display.running_in_words(record)}. If its task still runs, it goes on, and a second one can start "
            f"beside it at once. The first task notices at its next extension, or never. Free a lock only if you "
            f"know that its holder is dead."
        )
    return Confirmation(f"Free {name} by force", "Free by force", consequence, seen=_seen(record))


def _release(provider: Any, name: str, values: Mapping[str, str], by: str) -> str:
    record = _unchanged(provider, name, values)
    if not provider.force_release(name, record):
        raise NotDone(f"{display.printable(name)} is not held any more.")
    return f"it was held by {display.holder_of(record)} for {display.in_words(display.age(record))}"


def _demote_confirmation(record: LockRecord, name: str, values: Mapping[str, str]) -> Confirmation:
    leader = leader_of(record)
    if leader is None:
        raise NotDone(f"Nobody leads in {name}.")
    return Confirmation(
        f"Demote the leader of {name}",
        "Demote",
        f"{display.printable(leader.holder)} loses its lease, and nobody leads in {name} for the renew deadline; then "
        f"another node can. If the electors have a longer renew deadline, two can lead at the same time.",
        (
            Field(
                "renew_deadline",
                "Renew deadline",
                values.get("renew_deadline", "10s"),
                "the same value as the electors have; their default is two thirds of lease_duration",
            ),
            Field(
                "cooldown",
                "Cooldown",
                values.get("cooldown", "0s"),
                "how long this node must not become the leader again",
            ),
        ),
        seen=_seen(leader),
    )


def _demote(provider: Any, name: str, values: Mapping[str, str], by: str) -> str:
    former = leader_of(_unchanged(provider, name, values))
    if former is None:
        raise NotDone(f"Nobody leads in {display.printable(name)} any more.")
    cooldown = parse_duration(values.get("cooldown", ""), "cooldown", zero=True)
    deadline = parse_duration(values.get("renew_deadline", ""), "renew deadline")
    request = Demotion(former.holder, cooldown).request(name, deadline)
    try:
        provider.take_over(request, former)
    except ProviderUnreachable:
        raise
    except ProviderError as error:
        raise NotDone(display.printable(display.one_line(error))) from error
    lasts = display.in_words(request.lock_at_most_for)
    return f"{display.printable(former.holder)} led, term {former.fencing_token}; nobody leads for {lasts}"


# Prune


def _prune_confirmation(provider: Any, values: Mapping[str, str]) -> Confirmation:
    unused_for = values.get("unused_for", "90d")
    records = provider.records()
    names = names_to_prune(records, parse_duration(unused_for, "unused for", zero=True))
    more = (f"and {len(names) - MOST_NAMES} more",) if len(names) > MOST_NAMES else ()
    return Confirmation(
        "Prune",
        f"Delete {display.counted(len(names), 'record')}",
        f"{display.counted(len(names), 'lock record')} {'is' if len(names) == 1 else 'are'} free and "
        f"{'was' if len(names) == 1 else 'were'} not held for {unused_for}. Their runs and last fire times "
        f"are deleted, too. Jobs are not harmed: the next run makes a new record. Do not prune a table that ShedLock "
        f"for Java also uses: it makes no new record until it is restarted.",
        (Field("unused_for", "Not held for", unused_for, "change it, and count again before you delete"),),
        seen=f"{unused_for} {read_at(records).isoformat()}",
        details=tuple(map(display.printable, names[:MOST_NAMES])) + more,
    )


def _prune(provider: Any, values: Mapping[str, str]) -> str:
    unused_for, _, counted_at = values.get("seen", "").partition(" ")
    if values.get("unused_for") != unused_for:
        raise NotDone("The period was changed after counting: count again before you delete.")
    try:
        since = datetime.fromisoformat(counted_at)
        deleted = prune_as_listed(provider, parse_duration(unused_for, "unused for", zero=True), since)
    except (TypeError, ValueError) as error:
        raise NotDone("The records were not counted: count again before you delete.") from error
    were = "was" if deleted == 1 else "were"
    return f"{display.counted(deleted, 'lock record')} that {were} not held for {values['unused_for']}"


def read_at(records: Sequence[LockRecord]) -> datetime:
    """Return when ``records`` were read, by the store's clock."""
    return max((record.read_at for record in records), default=datetime.max.replace(tzinfo=UTC))


def prune_as_listed(provider: LockProvider, unused_for: timedelta, listed_at: datetime) -> int:
    """Delete records that were unused for ``unused_for`` at ``listed_at`` and still are. Return their number.

    Records that have become old enough since then stay, because nobody has confirmed their names.
    """
    passed = read_at(provider.records()) - listed_at
    return provider.prune(unused_for + max(passed, timedelta(0)))


# Shared


def _seen(record: LockRecord) -> str:
    """Return the acquisition of ``record``, for a hidden field of the form."""
    return " ".join(map(str, record.acquisition))


def _unchanged(provider: Any, name: str, values: Mapping[str, str]) -> LockRecord:
    """Return the record of ``name``.

    :raises NotDone: the record is not the one that the confirmation has shown.
    """
    record: LockRecord | None = provider.record(name)
    if record is None or _seen(record) != values.get("seen"):
        raise NotDone(f"{display.printable(name)} has changed meanwhile: look at it again.")
    return record


_CONFIRMATIONS: dict[str, Callable[[Any, str, Mapping[str, str]], Confirmation]] = {
    "pause": _pause_confirmation,
    "resume": _resume_confirmation,
    "force_release": _release_confirmation,
    "demote": _demote_confirmation,
}
_CHANGES: dict[str, Callable[[Any, str, Mapping[str, str], str], str]] = {
    "pause": _pause,
    "resume": _resume,
    "force_release": _release,
    "demote": _demote,
}
