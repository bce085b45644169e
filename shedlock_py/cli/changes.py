"""What changed between two looks at the store. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from shedlock_py.cli.tables import demoted_leader
from shedlock_py.record import LockRecord

Kind = Literal["held", "acquired", "demoted", "released", "expired", "ran", "deleted"]


@dataclass(frozen=True)
class Change:
    """``held``: it was when the watch began. ``ran``: it was acquired and became free again between two looks."""

    kind: Kind
    record: LockRecord


@dataclass(frozen=True)
class _Known:
    """What is known of one lock from the looks so far."""

    record: LockRecord
    hold: timedelta
    """For how long it is held, counted from the acquisition or, once one was seen, from the newest extension."""
    was_shortened: bool
    """It was released, but is held until its ``lock_at_least_for`` is over."""


class Watch:
    """Compares each look at the store with the one before."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] | None = None

    def look(self, records: Sequence[LockRecord]) -> list[Change]:
        """What changed since the last look; at the first look, what is held."""
        before, first = self._known or {}, self._known is None
        changes = [] if not first else [Change("held", record) for record in records if record.is_held]
        self._known = {}
        for record in records:
            known = before.get(record.name)
            if not first:
                kind = _change(known, record)
                if kind is not None:
                    changes.append(Change(kind, record))
            self._known[record.name] = _learn(known, record)
        gone = [known.record for name, known in before.items() if name not in self._known]
        return changes + [Change("deleted", record) for record in gone]

    def part_left(self, record: LockRecord) -> float:
        """Which part of its hold time is left of a lock, from 1 to 0."""
        known = (self._known or {}).get(record.name)
        hold = known.hold if known is not None else record.lock_until - record.locked_at
        return min(1.0, record.remaining / hold) if hold > timedelta(0) else 0.0


def _learn(known: _Known | None, record: LockRecord) -> _Known:
    if known is None or known.record.locked_by != record.locked_by:
        return _Known(record, record.lock_until - record.locked_at, was_shortened=False)
    if record.lock_until > known.record.lock_until:
        # The record does not say when it was extended, nor by how much: what is left of it now is the best guess.
        return _Known(record, record.remaining, was_shortened=False)
    shortened = record.is_held and record.lock_until < known.record.lock_until
    return replace(known, record=record, was_shortened=known.was_shortened or shortened)


def _change(known: _Known | None, record: LockRecord) -> Kind | None:
    if known is None or known.record.locked_by != record.locked_by:
        if not record.is_held:
            return "ran"
        return "acquired" if demoted_leader(record) is None else "demoted"
    before = known.record
    if not before.is_held or record.is_held:
        return None
    return "released" if known.was_shortened or record.lock_until < before.lock_until else "expired"
