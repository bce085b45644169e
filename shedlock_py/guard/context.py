"""The leases that enclose the running code.

Code is inside a lease if it runs in the context of the guarded task while the lease lives. A context variable carries
the lease. Python copies the context into tasks, timers, and the threads of ``asyncio.to_thread``. A forked child is not
inside.
"""

from __future__ import annotations

from contextvars import ContextVar
from threading import get_ident
from typing import Protocol

from shedlock_py.errors import NotLocked, hidden_frames
from shedlock_py.model.lease import Lease
from shedlock_py.runtime.process import OwningProcess
from shedlock_py.settings.lookup import configured_providers

__tracebackhide__ = hidden_frames


class KeepAlive(Protocol):
    """The methods of keep-alive for a task that extends its lease itself."""

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
        self.ended_at = 0.0  # the end of the task, before keep-alive was stopped
        self.keep_alive: KeepAlive | None = None
        self.is_loss_reported = False
        self.recovers = False  # another replica runs it again if its run never ends
        self.alias: tuple[object, str] | None = None
        self.is_alias_used = False  # the function of the alias has found this lease

    def is_live_here(self) -> bool:
        """Return whether the task runs under a trusted lease, in this process."""
        return not self.finished and self.lease.is_trusted() and self.owner.is_current()

    def enter(self) -> None:
        running.add(self)
        current.set(self)

    def leave(self) -> None:
        self.finished = True
        while self.parent is not None and self.parent.finished:
            self.parent = self.parent.parent  # no growing chain if each run of a job starts the next
        active = current.get()
        while active is not None and active.finished:  # locks may be left in any order
            active = active.parent
        current.set(active)


running: set[ActiveLease] = set()
"""The leases of tasks that run or are being released, in all threads. A forked child has the parent's leases, too."""

current: ContextVar[ActiveLease | None] = ContextVar("shedlock_py_current", default=None)


def leave_leases() -> None:
    """Take the running context out of all leases."""
    current.set(None)


def find_live(name: str | None = None) -> ActiveLease | None:
    """Return the nearest live lease, of ``name`` if given, that encloses the running code."""
    active = current.get()
    while active is not None and not (name in (None, active.lease.name) and active.is_live_here()):
        active = active.parent
    return active


def find_enclosing(name: str, provider: object, spec: object = None) -> ActiveLease | None:
    """Return the nearest live lease of lock ``name`` on ``provider``, or else on a configured provider.

    A lease with the alias ``(spec, name)`` counts as well: see :func:`add_alias`.
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


def add_alias(spec: object, lock_name: str) -> None:
    """Let the current lease count as the lock ``lock_name`` of the function with ``__shedlock__`` ``spec``.

    For schedulers that take a function's lock before they call it, perhaps on another provider object of the same
    store. Otherwise the function would find its lock held by its own scheduler, and would be skipped each time.
    """
    require_live().alias = (spec, lock_name)


def is_held_for(spec: object, lock_name: str) -> bool:
    """Return whether a scheduler of this process holds the lock for the function of ``spec``, which has not used it.

    If the function is refused then, the scheduler's call most likely runs outside the lease.
    """
    alias = spec, lock_name
    return any(
        active.alias == alias and not (active.is_alias_used or active.finished) and active.owner.is_current()
        for active in list(running)
    )


def current_lease() -> Lease | None:
    """Return the nearest live lease that encloses the running code, or None."""
    active = find_live()
    return active.lease if active else None


def assert_locked(name: str | None = None) -> None:
    """Check that the running code is inside a live lease (of ``name``, if given).

    :raises NotLocked: no guard encloses it, the lease has ended, or the guard has another name.
    """
    require_live(name)


def require_live(name: str | None = None) -> ActiveLease:
    """Return the nearest live lease (of ``name``, if given).

    :raises NotLocked: the running code is not inside such a lease.
    """
    active = find_live(name)
    if active is None:
        what = "any lock" if name is None else f"lock {name!r}"
        raise NotLocked(
            f"not inside a live lease of {what}: call it inside @scheduler_lock or 'with hold(…)'. A function with "
            f"several decorators needs @scheduler_lock directly above 'def', below the scheduler's decorator"
        )
    return active
