"""Faults of ``run_once``: in the reading of the record by a waiting caller, and in the end of a task that raised."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from shedlock_py import LockRecord
from shedlock_py.guard.block import BaseBlock
from shedlock_py.guard.once import _Once
from shedlock_py.model.lease import Lease
from shedlock_py.model.recovery import Decision, Over, Recover, Wait, Watch
from tests.simulation.mutants.mutant import Change, mutate

_watch = partial(mutate, Watch, kind="one-time tasks", part="run_once")
_once = partial(mutate, _Once, kind="one-time tasks", part="run_once")


@_watch("decide")
def a_key_that_is_done_passes_for_a_dead_one(original: Change, watch: Watch, record: LockRecord) -> Decision:
    """A waiting caller takes a released lease for the lease of a dead holder."""
    decision: Decision = original(watch, replace(record, is_released=False) if record.is_released else record)
    return decision


@_watch("decide")
def a_key_that_is_held_passes_for_done(original: Change, watch: Watch, record: LockRecord) -> Decision:
    """A caller does not wait for the process that runs the task."""
    decision: Decision = original(watch, record)
    return Over("released") if isinstance(decision, Wait) else decision


@_watch("decide")
def a_dead_run_passes_for_done(original: Change, watch: Watch, record: LockRecord) -> Decision:
    """A lease that has expired counts as released."""
    decision: Decision = original(watch, record)
    return Over("released") if isinstance(decision, Recover) else decision


@_watch("decide")
def nobody_takes_a_dead_run_over(original: Change, watch: Watch, record: LockRecord) -> Decision:
    """Callers wait for a holder that has died, until their time is over."""
    decision: Decision = original(watch, record)
    return Wait(1.0) if isinstance(decision, Recover) else decision


@_once("release_of")
def a_task_that_raises_keeps_its_fire_time(original: Change, block: _Once, lease: Lease, store: Any) -> Any:
    """After a task that raised, the lease is released, as after a success."""
    return BaseBlock.release_of(block, lease, store)
