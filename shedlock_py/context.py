"""The leases that the running code is inside of: per thread and task, through a context variable.

Tasks made by the job inherit it. A new thread does not, unless it runs in ``contextvars.copy_context()``
(``asyncio.to_thread`` does so by itself).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

from shedlock_py.config import emit, resolve_async_provider, resolve_provider
from shedlock_py.durations import Duration
from shedlock_py.errors import LeaseLostError, NotLocked, ProviderError
from shedlock_py.events import LeaseLost, LockExtended, ProviderFailed
from shedlock_py.rules import Lease


class Held:
    """One lease while its task runs. Tasks that outlive the guard still refer to it, but it is no longer live."""

    __slots__ = ("finished", "lease", "outer", "provider")

    def __init__(self, lease: Lease, provider: object) -> None:
        self.lease = lease
        self.provider = provider
        self.outer = _innermost.get()
        self.finished = False

    def is_live(self) -> bool:
        """Whether the task is still running and its lease may be believed."""
        return not self.finished and self.lease.is_trusted()

    def enter(self) -> None:
        _innermost.set(self)

    def leave(self) -> None:
        self.finished = True
        outer = _innermost.get()
        while outer is not None and outer.finished:  # locks need not be left in the order of nesting
            outer = outer.outer
        _innermost.set(outer)


_innermost: ContextVar[Held | None] = ContextVar("shedlock_py_innermost", default=None)


def find_live(name: str | None = None, providers: Sequence[object] = ()) -> Held | None:
    """The innermost live lease around the running code: of ``name`` and on one of ``providers``, where given."""
    held = _innermost.get()
    while held is not None:
        is_wanted = not providers or any(held.provider is provider for provider in providers)
        if is_wanted and name in (None, held.lease.name) and held.is_live():
            return held
        held = held.outer
    return None


def current_lease() -> Lease | None:
    """The innermost live lease that the running code is inside of, or None."""
    held = find_live()
    return held.lease if held else None


def assert_locked(name: str | None = None) -> None:
    """Make sure that the running code is inside a live lease (of ``name``, if given).

    :raises NotLocked: it is not: no guard around it, its lease has ended, or the guard is of another name.
    """
    _live(name)


def extend_lock(lock_at_most_for: Duration) -> Lease:
    """From inside a task: hold its lock for ``lock_at_most_for`` from now on.

    :raises NotLocked: not inside a live lease.
    :raises LeaseLostError: somebody else has it, or may have it.
    :raises ProviderError: the store failed; the lease is what it was before, at most.
    """
    held = _live()
    provider = resolve_provider(held.provider, lock_name=held.lease.name)
    try:
        return _extended(held.lease, provider.extend(held.lease, lock_at_most_for))
    except ProviderError as error:
        raise _failed(held.lease, error) from error.__cause__


async def extend_lock_async(lock_at_most_for: Duration) -> Lease:
    """:func:`extend_lock` for async tasks."""
    held = _live()
    provider = resolve_async_provider(held.provider, lock_name=held.lease.name)
    try:
        return _extended(held.lease, await provider.extend(held.lease, lock_at_most_for))
    except ProviderError as error:
        raise _failed(held.lease, error) from error.__cause__


def _live(name: str | None = None) -> Held:
    held = find_live(name)
    if held is None:
        what = "any lock" if name is None else f"lock {name!r}"
        raise NotLocked(f"not inside a live lease of {what}: call it inside @scheduler_lock or 'with hold(…)'")
    return held


def _extended(lease: Lease, extended: Lease | None) -> Lease:
    if extended is None:
        emit(LeaseLost(lease.name, lease, "revoked"))
        raise LeaseLostError(f"lock {lease.name!r} could not be extended: its lease has ended or was taken over")
    emit(LockExtended(lease.name, extended))
    return extended


def _failed(lease: Lease, error: ProviderError) -> ProviderError:
    emit(ProviderFailed(lease.name, "extend", error))
    return error
