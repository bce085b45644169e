"""The gates, which decide whether a task may begin, and the skip of a task that may not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

from shedlock_py.errors import ProviderUnreachable, ShedLockError
from shedlock_py.events import SkipReason
from shedlock_py.guard.context import running
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest

Gate = Callable[[], SkipReason | None]
"""A condition for a task to begin. Returns why it may not, or None if it may. The lock itself comes last."""
process_gates: list[Gate] = []
"""The gates of every guarded task of this process, for example the gate of ``release_on_sigterm``."""


@dataclass(frozen=True)
class Skipped:
    """The task did not run. It is false: ``if attempt(…):`` means "if it ran".

    ``reason`` is "held" if another replica has the lock, "already_ran" if the fire time has run, … ``holder`` is the
    replica that has the lock, or None if the store did not name it.
    """

    lock_name: str
    reason: SkipReason = "held"
    holder: str | None = field(default=None, compare=False)
    ran: ClassVar[Literal[False]] = False

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        held = f"{self.holder!r} holds it" if self.holder else "another holder has it"
        return f"lock {self.lock_name!r} was not granted: {_WHY.get(self.reason, held)}"


_WHY: dict[SkipReason, str] = {
    "already_ran": "its fire time has run",
    "provider_error": "the store failed",
    "shutting_down": "this process is shutting down",
    "not_leader": "this replica is not the leader",
}


class LockNotAcquired(ShedLockError):
    """``hold`` did not get the lock, so its block did not run. ``skipped.reason`` says why: "held", …

    ``try_hold`` gives None instead.
    """

    def __init__(self, skipped: Skipped) -> None:
        super().__init__(str(skipped))
        self.skipped = skipped

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.skipped,)


def lock_refused(request: LockRequest, record: LockRecord | None) -> Skipped:
    """Return the skip after the store has refused the lock. ``record`` was read after that, if it is known."""
    if record is not None and record.is_held:
        return Skipped(request.name, "held", record.holder)
    last = record.last_fire_time if record is not None else None
    has_run = request.fire_time is not None and last is not None and last >= request.fire_time
    return Skipped(request.name, "already_ran" if has_run else "held")


def is_held_by_earlier_run(request: LockRequest, record: LockRecord | None) -> bool:
    """Return whether the run of an earlier fire time has the lock, so that nobody runs the fire time of ``request``.

    False if that run has ended and only its minimum hold is left, or if an operator has paused the job. ShedLock for
    Java keeps no fire times, so a holder in Java may run this one.
    """
    if request.fire_time is None or record is None or record.last_fire_time is None:
        return False
    is_of_run = record.is_held and record.is_released is not True and not record.is_of_operator and record.has_claim_id
    return is_of_run and record.last_fire_time < request.fire_time


def is_free_for(request: LockRequest, record: LockRecord | None) -> bool:
    """Return whether the record lets the fire time of ``request`` be granted, although the store has refused it.

    The lock has become free since, or in a quorum the attempts of several replicas have refused each other. A skip
    would lose the run on all replicas.
    """
    if request.fire_time is None or record is None or record.is_held:
        return False
    return record.last_fire_time is None or record.last_fire_time < request.fire_time


class LostReplies:
    """The attempts at one run that may have been granted, but whose reply was lost.

    A granted one is a lost claim: it holds the lock and the fire time, and no replica runs it. The provider undoes the
    claim as soon as the store replies, or the claim expires.
    """

    def __init__(self) -> None:
        self._errors: dict[str | None, ProviderUnreachable] = {}
        """By ``locked_by`` of the attempt; None for an attempt of an unknown claim id."""
        self.error: ProviderUnreachable | None = None
        """The error of the lost claim that the store may still have, as far as this process knows."""

    def add(self, error: ProviderUnreachable) -> None:
        """Note an attempt that has failed with ``error``."""
        if error.locked_by != "":
            self._errors[error.locked_by] = self.error = error

    def check(self, request: LockRequest, record: LockRecord | None) -> bool:
        """Look for a lost claim in the record that was read after a refusal. None: it was not read.

        Return whether the store may have a lost claim.
        """
        if record is not None:
            self.error = self._lost_claim(request, record)
        return self.error is not None

    def clear(self) -> None:
        """Forget the errors, because their tracebacks keep the frames of the attempts alive."""
        self._errors.clear()
        self.error = None

    def _lost_claim(self, request: LockRequest, record: LockRecord) -> ProviderUnreachable | None:
        if record.locked_by in self._errors:
            return None if record.is_released else self._errors[record.locked_by]
        is_of_run = request.fire_time is not None and record.last_fire_time == request.fire_time
        if not is_of_run or record.is_released is not False or record.holder != request.holder:
            return None
        # A run of another thread of this process is no lost claim.
        is_live_here = any(active.lease.locked_by == record.locked_by for active in list(running))
        return None if is_live_here else self._errors.get(None)


def gates_of(task: Any) -> tuple[Gate, ...]:
    """Return the gates that ``@leader_only`` left on a function, method, partial or callable object.

    Code that takes a lock for such a task must check the gates first: a follower must not keep the lock from the
    leader.
    """
    while isinstance(task, partial):
        task = task.func
    call = getattr(type(task), "__call__", None)  # noqa: B004 (the function that a call runs)
    return getattr(task, "__shedlock_gates__", ()) or getattr(call, "__shedlock_gates__", ())


def not_leader(is_leader: Callable[[], bool]) -> Gate:
    """Return the gate of tasks that run on the leader only."""
    return lambda: None if is_leader() else "not_leader"
