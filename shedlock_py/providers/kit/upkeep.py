"""Frees a lock by force, and forgets a fire time, for operators."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from shedlock_py.errors import hidden_frames
from shedlock_py.model.record import ONCE, LockRecord
from shedlock_py.providers.kit.failures import refused, require_same_name
from shedlock_py.providers.kit.fire_times import former_of
from shedlock_py.providers.kit.operation import Operation, Policy
from shedlock_py.runtime.program import Program

__tracebackhide__ = hidden_frames


class OfStore(Policy, Protocol):
    """The programs of the store that these functions need: see :class:`StorePrograms`."""

    def record(self, name: str) -> Program[Any, Any, LockRecord | None]: ...

    def free(self, record: LockRecord) -> Program[Any, Any, bool]: ...

    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> Program[Any, Any, bool]: ...

    def delete_fire_time(self, name: str, fire_time: datetime) -> Program[Any, Any, bool]: ...


def force_release(programs: OfStore, name: str, expected: LockRecord | None = None) -> Program[Any, Any, bool]:
    """Free ``name`` from the holder in ``expected``. Without ``expected``, free it from the current holder."""
    require_same_name(name, expected)
    operation = Operation(programs, "force_release", name)
    record = expected or (yield from operation.carry_out(programs.record(name)))
    if record is None or not record.is_held:
        return False
    is_freed = yield from operation.carry_out(programs.free(record))
    if expected is None:
        if not is_freed:  # the holder released it meanwhile, and its minimum hold may be left
            found = yield from operation.carry_out(programs.record(name))
            if found is not None and found.is_held and found.is_released:
                yield from operation.carry_out(programs.free(found))
        return True
    if not is_freed and operation.was_repeated:  # the first copy may have freed it
        found = yield from operation.carry_out(programs.record(name))
        is_freed = found is not None and found.locked_by == record.locked_by and not found.is_held
    return is_freed


def forget_fire_time(programs: OfStore, name: str, expected: LockRecord | None = None) -> Program[Any, Any, bool]:
    """Forget the newest fire time of ``name``. Return False if the record had no fire time when it was read.

    Return True also if the record then has another fire time, or none: perhaps a first copy of the command has
    forgotten it, and its reply was lost.

    :param expected: the record that the operator saw. Without it, the program reads the record.
    """
    require_same_name(name, expected)
    record = expected or (yield from programs.record(name))
    newest = record.last_fire_time if record else None
    if record is None or newest is None:
        return False
    if newest == ONCE:
        return (yield from _forget_key(programs, record))
    if not (yield from programs.delete_fire_time(name, newest)):
        record = yield from programs.record(name)
        if record is not None and record.last_fire_time == newest:
            what = f"the store has the fire time {newest} still, in a form that this library does not write"
            raise refused("forget_fire_time", name, what, hint="delete it from the record by hand")
    return True


def _forget_key(programs: OfStore, record: LockRecord) -> Program[Any, Any, bool]:
    """Let a ``run_once`` key run again. All its runs have the same fire time, so this compares claim ids."""
    if record.is_held:
        return False  # its task may succeed yet
    if not record.is_released:  # one reply with a wrong time may show the lease of a live holder as ended
        again = yield from programs.record(record.name)
        if again is None or again.is_held or again.acquisition != record.acquisition:
            return False
    if not (yield from programs.undo_claim(record.name, record.locked_by, former_of(ONCE))):
        found = yield from programs.record(record.name)
        return found is None or found.last_fire_time != ONCE  # a first copy may have forgotten it
    return True
