"""Faults of keep-alive."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from shedlock_py.guard.heartbeat_plan import HeartbeatPlan
from tests.simulation.mutants.mutant import Change, Mutant, add, mutate

NEVER_DUE = float("inf")

_plan = partial(mutate, HeartbeatPlan, kind="locks", part="keep-alive")


@_plan("failed")
def a_failed_heartbeat_ends_keep_alive(failed: Change, plan: HeartbeatPlan, lock_for: timedelta, now: float) -> None:
    """After one error of the store no heartbeat is sent any more."""
    failed(plan, lock_for, now)
    plan.due = NEVER_DUE


@_plan("extended")
def there_is_only_one_heartbeat(extended: Change, plan: HeartbeatPlan, lock_for: timedelta, now: float) -> None:
    """The first heartbeat is the last heartbeat."""
    is_first = not hasattr(plan, "due")
    extended(plan, lock_for, now)
    if not is_first:
        plan.due = NEVER_DUE


@_plan("failed")
def retries_come_too_late(failed: Change, plan: HeartbeatPlan, lock_for: timedelta, now: float) -> None:
    """A failed heartbeat is repeated a whole lease later."""
    failed(plan, lock_for, now)
    plan.due = now + lock_for.total_seconds()


add(
    Mutant(
        "one heartbeat for each lease",
        "keep-alive",
        "A heartbeat is due when the lease ends, not every third of it.",
        "locks",
        HeartbeatPlan,
        "HEARTBEATS",
        1,
    )
)
