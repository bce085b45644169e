"""Whether a task is skipped, and why: the one decision.

A gate is a condition that a task must pass before it may begin. The lock itself is the last one: :func:`lock_refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shedlock_py.events import SkipReason
from shedlock_py.record import LockRecord
from shedlock_py.request import LockRequest

Gate = Callable[[], SkipReason | None]
"""Returns why no task may begin now; None: it may."""

process_gates: list[Gate] = []
"""The gates of every guarded task of this process, such as that of ``release_on_sigterm``."""


@dataclass(frozen=True)
class Skipped:
    """The task did not run: the lock is held elsewhere (``"held"``), its fire time has run (``"already_ran"``), …"""

    lock_name: str
    reason: SkipReason = "held"


def decide_skip(lock_name: str, gates: Iterable[Gate]) -> Skipped | None:
    """The skip of a task, with the reason of the first gate that refuses it; None: it passes."""
    for gate in gates:
        reason = gate()
        if reason is not None:
            return Skipped(lock_name, reason)
    return None


def lock_refused(request: LockRequest, record: LockRecord | None) -> Gate:
    """The gate of a lock that the store has refused. ``record`` is the lock record after that, as far as known."""

    def gate() -> SkipReason:
        last = record.last_fire_time if record is not None and not record.is_held else None
        has_run = request.fire_time is not None and last is not None and last >= request.fire_time
        return "already_ran" if has_run else "held"

    return gate


def not_leader(is_leader: Callable[[], bool]) -> Gate:
    """The gate of tasks that run on the leader only."""
    return lambda: None if is_leader() else "not_leader"
