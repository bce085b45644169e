"""What changed between two reads of the store. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from shedlock_py.cli.tables import state_of
from shedlock_py.record import LockRecord

Kind = Literal["held", "acquired", "demoted", "released", "expired", "ran", "deleted"]


@dataclass(frozen=True)
class Change:
    """``held``: when the watch began. ``ran``: it was acquired and became free again between two reads."""

    kind: Kind
    record: LockRecord


@dataclass(frozen=True)
class _Known:
    """What the reads so far have shown of one lock."""

    record: LockRecord
    hold: timedelta
    """For how long it is held, counted from the acquisition or, once one was seen, from the newest extension."""
    was_shortened: bool = False
    """It was released, but is held until its ``lock_at_least_for`` is over."""


class Watch:
    """Compares each read of the store with the one before."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] | None = None

    def update(self, records: Sequence[LockRecord]) -> list[Change]:
        """What changed since the last read; at the first one, what is held."""
        if self._known is None:
            changes = [Change("held", record) for record in records if record.is_held]
            before: dict[str, _Known] = {}
        else:
            before = self._known
            kinds = ((_change(before.get(record.name), record), record) for record in records)
            changes = [Change(kind, record) for kind, record in kinds if kind is not None]
        self._known = {record.name: _learn(before.get(record.name), record) for record in records}
        deleted = [known.record for name, known in before.items() if name not in self._known]
        return changes + [Change("deleted", record) for record in deleted]

    def part_left(self, record: LockRecord) -> float:
        """How much of its hold time a lock has left, from 1 to 0."""
        known = (self._known or {}).get(record.name)
        hold = known.hold if known is not None else record.lock_until - record.locked_at
        return min(1.0, record.remaining / hold) if hold > timedelta(0) else 0.0


def _learn(known: _Known | None, record: LockRecord) -> _Known:
    if known is None or known.record.locked_by != record.locked_by:
        return _Known(record, record.lock_until - record.locked_at)
    if record.lock_until > known.record.lock_until:
        # The record does not contain the time or the length of an extension: take what is left now.
        return _Known(record, record.remaining)
    shortened = record.is_held and record.lock_until < known.record.lock_until
    return replace(known, record=record, was_shortened=known.was_shortened or shortened)


def _change(known: _Known | None, record: LockRecord) -> Kind | None:
    if known is None or known.record.locked_by != record.locked_by:
        if not record.is_held:
            return "ran"
        return "demoted" if state_of(record) == "demoted" else "acquired"
    if record.is_held or not known.record.is_held:
        return None
    return "released" if known.was_shortened or record.lock_until < known.record.lock_until else "expired"
