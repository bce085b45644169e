"""The leases that the running code is inside of.

Inside is what the guarded task calls or awaits, in the same process, while its lease lives: its own code, the tasks
that it makes, and threads that run in a copy of its context (``asyncio.to_thread``). A context variable carries the
lease there. asyncio also copies the context into what the task only sets off: the callbacks of timers, and the tasks
that those make. They are not inside, nor is a forked child; see :meth:`ActiveLease.is_here`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from shedlock_py._process import OwningProcess
from shedlock_py.config import emit
from shedlock_py.durations import Duration
from shedlock_py.errors import ConfigurationError, LeaseError, LeaseLostError, NotLocked
from shedlock_py.events import LeaseLost, LockExtended, ProviderFailed
from shedlock_py.lease import Lease
from shedlock_py.resolve import as_async_provider, as_provider

if TYPE_CHECKING:
    import asyncio


class KeepAlive(Protocol):
    """What keeps a lease alive, as far as a task that extends the lease itself must know it."""

    def is_busy(self, *, is_async: bool) -> bool:
        """Whether a heartbeat is under way, for which the task can wait."""

    def pause(self) -> None:
        """Begin no heartbeat."""

    def resume(self) -> None:
        """The lease was extended, or not; go on from there."""

    def report_lost(self) -> None:
        """The store does not have the lease any more: tell everybody, unless that is done."""


class ActiveLease:
    """One lease while its task runs. Tasks that outlive the guard still refer to it, but it is no longer live."""

    def __init__(self, lease: Lease, provider: object, owner: OwningProcess) -> None:
        self.lease = lease
        self.provider = provider
        self.parent = current.get()
        self.owner = owner
        self.thread = get_ident()
        self._loop, self._task = _running_task()
        self.finished = False
        self.ended_at = 0.0  # when the task ended, if something was waited for after it
        self.keep_alive: KeepAlive | None = None
        self.is_loss_reported = False
        self.alias: tuple[object, str] | None = None

    def is_live(self) -> bool:
        """Whether the task is still running and its lease may be believed."""
        return not self.finished and self.lease.is_trusted()

    def is_here(self) -> bool:
        """Whether the running code, which has the task's context, is called or awaited by the task.

        A forked child is not. Nor is a callback of an event loop, or anything on another loop: a timer that the task
        has armed, such as a scheduler's, has its context too.
        """
        if not self.owner.is_current():
            return False
        loop, task = _running_task()
        if loop is None:
            return True  # ordinary code, in this thread or in one that was given the context
        if self._task is None:
            return self.thread == get_ident()  # the task is ordinary code, which runs this loop itself
        return loop is self._loop and task is not None

    def enter(self) -> None:
        if self.parent is not None:
            _forget_finished(self)
        if self._task is not None:
            _wrap_task_factory(self._loop)
        running.add(self)
        current.set(self)

    def leave(self) -> None:
        self.finished = True
        self._loop = self._task = None  # whose context refers to this lease
        current.set(_unfinished(current.get()))  # locks need not be left in the order of nesting


running: set[ActiveLease] = set()
"""The leases whose tasks run, or that are being released, in all threads; in a forked child its parent's as well."""


def _unfinished(active: ActiveLease | None) -> ActiveLease | None:
    """The innermost that is not finished: a job that starts its own next run must not grow a chain."""
    while active is not None and active.finished:
        active = active.parent
    return active


def _forget_finished(active: ActiveLease) -> None:
    """All around it, too: that job may end after its next run has begun."""
    parent: ActiveLease | None = active
    while parent is not None:
        parent.parent = _unfinished(parent.parent)
        parent = parent.parent


current: ContextVar[ActiveLease | None] = ContextVar("shedlock_py_current", default=None)


def _running_task() -> tuple[Any, object]:
    """The event loop that runs in this thread, and its current task; a callback of the loop has none."""
    loaded = sys.modules.get("asyncio")  # not imported here: most programs do without
    if loaded is None:
        return None, None
    try:
        loop = loaded.get_running_loop()
    except (RuntimeError, AttributeError):  # AttributeError: another thread is just importing it
        return None, None
    return loop, loaded.current_task(loop)


def _wrap_task_factory(loop: asyncio.AbstractEventLoop) -> None:
    factory = loop.get_task_factory()
    if not isinstance(factory, _TaskFactory):
        with suppress(NotImplementedError):  # an event loop of a kind of its own
            loop.set_task_factory(_TaskFactory(factory))


class _TaskFactory:
    """Lets a task that a callback of the event loop makes begin outside of every lease.

    asyncio copies the context of a task into the timers that it arms, and from there into the tasks that these make: a
    scheduler to which a guarded task adds a job would run all its later jobs inside that task's lease. asyncio does not
    record which task made which, so the factory sees to it when the task is made.
    """

    def __init__(self, wrapped: Callable[..., asyncio.Future[Any]] | None) -> None:
        self._wrapped = wrapped

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Future[Any]:
        if current.get() is not None:
            running, maker = _running_task()
            if running is not None and maker is None:
                context = copy_context()
                context.run(current.set, None)
                return context.run(self._make, loop, coro, options)
        return self._make(loop, coro, options)

    def _make(self, loop: asyncio.AbstractEventLoop, coro: Any, options: dict[str, Any]) -> asyncio.Future[Any]:
        if self._wrapped is not None:
            return self._wrapped(loop, coro, **options)
        import asyncio

        return asyncio.Task(coro, loop=loop, **options)


def find_live(name: str | None = None, providers: Sequence[object] = (), spec: object = None) -> ActiveLease | None:
    """The innermost live lease around the running code: of ``name`` and on one of ``providers``, where given.

    Or the one that stands for the lock ``name`` of the function with the spec ``spec``: see :func:`add_alias`.
    """
    active = current.get()
    while active is not None:
        is_wanted = not providers or any(active.provider is provider for provider in providers)
        is_named = name is None or (is_wanted and name == active.lease.name)
        stands_in = spec is not None and active.alias == (spec, name)
        if (is_named or stands_in) and active.is_live() and active.is_here():
            return active
        active = active.parent
    return None


def add_alias(spec: object, lock_name: str) -> None:
    """Let the innermost live lease count as the lock ``lock_name`` of the function whose ``__shedlock__`` is ``spec``.

    For schedulers that have taken a function's lock in its place, perhaps on another provider object of the same
    store: the function must not find its lock held by itself, and be skipped for ever.
    """
    _live().alias = (spec, lock_name)


def current_lease() -> Lease | None:
    """The innermost live lease that the running code is inside of, or None."""
    active = find_live()
    return active.lease if active else None


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
    active = _live()
    provider = as_provider(active.provider)
    with _paused(active.keep_alive):
        while _is_busy(active.keep_alive):
            time.sleep(_POLL_SECONDS)
        with _failing(active.lease):
            return _extended(active, provider.extend(active.lease, lock_at_most_for))


async def extend_lock_async(lock_at_most_for: Duration) -> Lease:
    """:func:`extend_lock` for async tasks."""
    import asyncio  # late: must not be loaded for others

    active = _live()
    provider = as_async_provider(active.provider)
    with _paused(active.keep_alive):
        while _is_busy_async(active.keep_alive):  # noqa: ASYNC110 (the heartbeat may be in a thread)
            await asyncio.sleep(_POLL_SECONDS)
        with _failing(active.lease):
            return _extended(active, await provider.extend(active.lease, lock_at_most_for))


_POLL_SECONDS = 0.005


@contextmanager
def _paused(keep_alive: KeepAlive | None) -> Iterator[None]:
    """While the task extends its lease no heartbeat does, which might cut it down again."""
    if keep_alive is None:
        yield
        return
    keep_alive.pause()
    try:
        yield
    finally:
        keep_alive.resume()


def _is_busy(keep_alive: KeepAlive | None) -> bool:
    return keep_alive is not None and keep_alive.is_busy(is_async=False)


def _is_busy_async(keep_alive: KeepAlive | None) -> bool:
    return keep_alive is not None and keep_alive.is_busy(is_async=True)


def _live(name: str | None = None) -> ActiveLease:
    active = find_live(name)
    if active is None:
        what = "any lock" if name is None else f"lock {name!r}"
        raise NotLocked(f"not inside a live lease of {what}: call it inside @scheduler_lock or 'with hold(…)'")
    return active


def _extended(active: ActiveLease, extended: Lease | None) -> Lease:
    name = active.lease.name
    if extended is None:
        if active.keep_alive is not None:
            active.keep_alive.report_lost()
        else:
            active.is_loss_reported = True
            emit(LeaseLost(name, active.lease, "revoked"))
        raise LeaseLostError(f"lock {name!r} could not be extended: its lease has ended or was taken over")
    emit(LockExtended(name, extended))
    return extended


@contextmanager
def _failing(lease: Lease) -> Iterator[None]:
    try:
        yield
    except (ConfigurationError, LeaseError):
        raise  # not the store's failure
    except Exception as error:
        emit(ProviderFailed(lease.name, "extend", error, lease))
        raise
