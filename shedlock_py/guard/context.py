"""Whether a task may begin: the leases that the running code is inside of, and the gates.

Code is inside a lease if it runs in the context of the guarded task while its lease lives. A context variable carries
the lease. Python copies the context into tasks, timers, and the threads of ``asyncio.to_thread``. A forked child is not
inside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import Any, ClassVar, Literal, Protocol

from shedlock_py.errors import ConfigurationError, LeaseError, LeaseLostError, NotLocked, ShedLockError, hidden_frames
from shedlock_py.events import LeaseLost, LockExtended, ProviderFailed, SkipReason
from shedlock_py.model.durations import Duration
from shedlock_py.model.lease import Lease
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest
from shedlock_py.runtime.process import OwningProcess
from shedlock_py.settings.emit import emit
from shedlock_py.settings.lookup import as_async_provider, as_provider, configured_providers

__tracebackhide__ = hidden_frames

POLL_SECONDS = 0.005


class KeepAlive(Protocol):
    """What keeps a lease alive, as seen by a task that extends the lease itself."""

    def is_busy(self, *, is_async: bool) -> bool: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def report_lost(self) -> None: ...


class ActiveLease:
    """One lease while its task runs. Code that outlives the guard may still refer to it; then it is not live."""

    def __init__(self, lease: Lease, provider: object, owner: OwningProcess) -> None:
        self.lease = lease
        self.provider = provider
        self.owner = owner
        self.parent = current.get()
        self.thread = get_ident()
        self.finished = False
        self.ended_at = 0.0  # when the task ended, if keep-alive had to be stopped after it
        self.keep_alive: KeepAlive | None = None
        self.is_loss_reported = False
        self.recovers = False  # if its run never ends, another replica runs it again
        self.alias: tuple[object, str] | None = None
        self.is_alias_used = False  # the function of the alias has found this lease

    def is_live_here(self) -> bool:
        """Whether the task runs under a trusted lease, in this process."""
        return not self.finished and self.lease.is_trusted() and self.owner.is_current()

    def enter(self) -> None:
        running.add(self)
        current.set(self)

    def leave(self) -> None:
        self.finished = True
        while self.parent is not None and self.parent.finished:
            self.parent = self.parent.parent  # a job that starts its own next run must not grow a chain
        active = current.get()
        while active is not None and active.finished:  # locks need not be left in the order of nesting
            active = active.parent
        current.set(active)


running: set[ActiveLease] = set()
"""The leases whose tasks run or that are being released, in all threads; in a forked child the parent's as well."""

current: ContextVar[ActiveLease | None] = ContextVar("shedlock_py_current", default=None)


def leave_leases() -> None:
    """Let the running context be inside of no lease."""
    current.set(None)


def find_live(name: str | None = None) -> ActiveLease | None:
    """The nearest live lease, of ``name`` if given, that the running code is inside of."""
    active = current.get()
    while active is not None and not (name in (None, active.lease.name) and active.is_live_here()):
        active = active.parent
    return active


def find_enclosing(name: str, provider: object, spec: object = None) -> ActiveLease | None:
    """The nearest live lease of lock ``name`` on ``provider``, else on a configured one.

    A lease whose alias is ``(spec, name)`` counts as well: see :func:`add_alias`.
    """
    active = current.get()
    while active is not None:
        providers = configured_providers(provider)
        is_there = not providers or any(active.provider is each for each in providers)
        is_it = (is_there and active.lease.name == name) or (spec is not None and active.alias == (spec, name))
        if is_it and active.is_live_here():
            return active
        active = active.parent
    return None


Gate = Callable[[], SkipReason | None]
"""A condition for a task to begin: returns why it may not; None: it may. The lock itself comes last."""
process_gates: list[Gate] = []
"""The gates of every guarded task of this process, such as that of ``release_on_sigterm``."""


@dataclass(frozen=True)
class Skipped:
    """The task did not run. It is false: ``if attempt(…):`` means "if it ran".

    ``reason`` is "held" if another replica has the lock, "already_ran" if the fire time has run, … ``holder`` is the
    replica that has the lock; None if the store did not say so.
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
    """``hold`` did not get the lock, so its block did not run. ``skipped`` says why: its ``reason`` is "held", …

    ``try_hold`` gives None instead.
    """

    def __init__(self, skipped: Skipped) -> None:
        super().__init__(str(skipped))
        self.skipped = skipped

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.skipped,)


def decide_skip(lock_name: str, gates: Iterable[Gate]) -> Skipped | None:
    """The skip of a task, with the reason of the first gate that refuses it; None: it passes."""
    for gate in gates:
        reason = gate()
        if reason is not None:
            return Skipped(lock_name, reason)
    return None


def lock_refused(request: LockRequest, record: LockRecord | None) -> Skipped:
    """The skip of a task whose lock the store has refused. ``record`` is its record after that, as far as known."""
    if record is not None and record.is_held:
        return Skipped(request.name, "held", record.holder)
    last = record.last_fire_time if record is not None else None
    has_run = request.fire_time is not None and last is not None and last >= request.fire_time
    return Skipped(request.name, "already_ran" if has_run else "held")


def gates_of(task: Any) -> tuple[Gate, ...]:
    """The gates that ``@leader_only`` left on a function, method, partial or callable object.

    What takes a lock for such a task must consult them first: a follower must not keep the lock from the leader.
    """
    while isinstance(task, partial):
        task = task.func
    call = getattr(type(task), "__call__", None)  # noqa: B004 (not whether it is callable, but what a call runs)
    return getattr(task, "__shedlock_gates__", ()) or getattr(call, "__shedlock_gates__", ())


def not_leader(is_leader: Callable[[], bool]) -> Gate:
    """The gate of tasks that run on the leader only."""
    return lambda: None if is_leader() else "not_leader"


def add_alias(spec: object, lock_name: str) -> None:
    """Let the current lease count as the lock ``lock_name`` of the function whose ``__shedlock__`` is ``spec``.

    For schedulers that take a function's lock before they call it, perhaps on another provider object of the same
    store. Otherwise the function would find its lock held, by its own scheduler, and be skipped each time.
    """
    _live().alias = (spec, lock_name)


def is_held_for(spec: object, lock_name: str) -> bool:
    """Whether a scheduler of this process holds the lock for the function of ``spec``, which has not run inside it yet.

    If the function is then refused, most likely the scheduler's own call runs outside of the lease.
    """
    alias = spec, lock_name
    return any(
        active.alias == alias and not (active.is_alias_used or active.finished) and active.owner.is_current()
        for active in list(running)
    )


def current_lease() -> Lease | None:
    """The nearest live lease that the running code is inside of, or None."""
    active = find_live()
    return active.lease if active else None


def assert_locked(name: str | None = None) -> None:
    """Make sure that the running code is inside a live lease (of ``name``, if given).

    :raises NotLocked: it is not: no guard encloses it, the lease has ended, or the guard is of another name.
    """
    _live(name)


def extend_lock(lock_at_most_for: Duration) -> Lease:
    """From inside a task: hold its lock for ``lock_at_most_for`` from now on.

    :raises NotLocked: not inside a live lease.
    :raises LeaseLostError: another holder has the lock, or may have it.
    :raises ProviderError: the store failed; the lease lasts no longer than before.
    """
    active = _live()
    provider = as_provider(active.provider)
    with _extending(active) as keep_alive:
        while keep_alive is not None and keep_alive.is_busy(is_async=False):
            time.sleep(POLL_SECONDS)
        _refuse_if_lost(active)
        return _extended(active, provider.extend(active.lease, lock_at_most_for))


async def extend_lock_async(lock_at_most_for: Duration) -> Lease:
    """:func:`extend_lock` for async tasks."""
    import asyncio  # late: must not be loaded for others

    active = _live()
    provider = as_async_provider(active.provider)
    with _extending(active) as keep_alive:
        while keep_alive is not None and keep_alive.is_busy(is_async=True):  # noqa: ASYNC110 (a thread may send it)
            await asyncio.sleep(POLL_SECONDS)
        _refuse_if_lost(active)
        return _extended(active, await provider.extend(active.lease, lock_at_most_for))


def _live(name: str | None = None) -> ActiveLease:
    active = find_live(name)
    if active is None:
        what = "any lock" if name is None else f"lock {name!r}"
        raise NotLocked(f"not inside a live lease of {what}: call it inside @scheduler_lock or 'with hold(…)'")
    return active


@contextmanager
def _extending(active: ActiveLease) -> Iterator[KeepAlive | None]:
    """While the task extends its lease no heartbeat begins, which might shorten the lease again."""
    keep_alive = active.keep_alive
    if keep_alive is not None:
        keep_alive.pause()
    try:
        yield keep_alive
    except (ConfigurationError, LeaseError):
        raise  # the store has not failed
    except Exception as error:
        emit(ProviderFailed(active.lease.name, "extend", error, active.lease), is_raised=True)
        raise
    finally:
        if keep_alive is not None:
            keep_alive.resume()


def _refuse_if_lost(active: ActiveLease) -> None:
    """Let no lease count as extended that keep-alive has reported as lost meanwhile: no heartbeat would follow."""
    if active.is_loss_reported:
        raise LeaseLostError(f"lock {active.lease.name!r} could not be extended: its lease was lost meanwhile")


def _extended(active: ActiveLease, extended: Lease | None) -> Lease:
    name = active.lease.name
    if extended is None:
        if active.keep_alive is not None:
            active.keep_alive.report_lost()
        else:
            active.is_loss_reported = True
            emit(LeaseLost(name, active.lease, "revoked"))
        raise LeaseLostError(f"lock {name!r} could not be extended: its lease has ended or was taken over")
    _refuse_if_lost(active)  # the reply may have come too late
    emit(LockExtended(name, extended))
    return extended
