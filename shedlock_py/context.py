"""The leases that the running code is inside of.

Inside is what the guarded task calls or awaits, in the same process, while its lease lives: its own code, the tasks
that it makes, and threads that run in a copy of its context (``asyncio.to_thread``). A context variable carries the
lease there. asyncio also copies the context into what the task only sets off: the callbacks of timers, and the tasks
that those make. They are not inside, nor is a forked child; see :meth:`Held.is_here`.
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
from shedlock_py.config import as_async_provider, as_provider, emit
from shedlock_py.durations import Duration
from shedlock_py.errors import ConfigurationError, LeaseError, LeaseLostError, NotLocked
from shedlock_py.events import LeaseLost, LockExtended, ProviderFailed
from shedlock_py.lease import Lease

if TYPE_CHECKING:
    import asyncio


class Heart(Protocol):
    """What keeps a lease alive, as far as a task that extends the lease itself must know it."""

    def is_busy(self, *, is_async: bool) -> bool:
        """Whether a heartbeat is under way, for which the task can wait."""

    def pause(self) -> None:
        """Begin no heartbeat."""

    def resume(self) -> None:
        """The lease was extended, or not; go on from there."""

    def tell_lost(self) -> None:
        """The store does not have the lease any more: tell everybody, unless that is done."""


class Held:
    """One lease while its task runs. Tasks that outlive the guard still refer to it, but it is no longer live."""

    def __init__(self, lease: Lease, provider: object, owner: OwningProcess) -> None:
        self.lease = lease
        self.provider = provider
        self.outer = innermost.get()
        self.owner = owner
        self.thread = get_ident()
        self._loop, self._task = _running_task()
        self.finished = False
        self.ended_at = 0.0  # when the task ended, if something was waited for after it
        self.heart: Heart | None = None
        self.lost_is_told = False
        self.stands_for: tuple[object, str] | None = None

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
        if self.outer is not None:
            _forget_finished(self)
        if self._task is not None:
            _wrap_task_factory(self._loop)
        running.add(self)
        innermost.set(self)

    def leave(self) -> None:
        self.finished = True
        self._loop = self._task = None  # whose context refers to this lease
        innermost.set(_unfinished(innermost.get()))  # locks need not be left in the order of nesting


running: set[Held] = set()
"""The leases whose tasks run, or that are being released, in all threads; in a forked child its parent's as well."""


def _unfinished(held: Held | None) -> Held | None:
    """The innermost that is not finished: a job that starts its own next run must not grow a chain."""
    while held is not None and held.finished:
        held = held.outer
    return held


def _forget_finished(held: Held) -> None:
    """All around it, too: that job may end after its next run has begun."""
    outer: Held | None = held
    while outer is not None:
        outer.outer = _unfinished(outer.outer)
        outer = outer.outer


innermost: ContextVar[Held | None] = ContextVar("shedlock_py_innermost", default=None)


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
        if innermost.get() is not None:
            running, maker = _running_task()
            if running is not None and maker is None:
                context = copy_context()
                context.run(innermost.set, None)
                return context.run(self._make, loop, coro, options)
        return self._make(loop, coro, options)

    def _make(self, loop: asyncio.AbstractEventLoop, coro: Any, options: dict[str, Any]) -> asyncio.Future[Any]:
        if self._wrapped is not None:
            return self._wrapped(loop, coro, **options)
        import asyncio

        return asyncio.Task(coro, loop=loop, **options)


def find_live(name: str | None = None, providers: Sequence[object] = (), mark: object = None) -> Held | None:
    """The innermost live lease around the running code: of ``name`` and on one of ``providers``, where given.

    Or the one that stands for the lock ``name`` of the function marked ``mark``: see :func:`stand_for`.
    """
    held = innermost.get()
    while held is not None:
        is_wanted = not providers or any(held.provider is provider for provider in providers)
        is_named = name is None or (is_wanted and name == held.lease.name)
        stands_in = mark is not None and held.stands_for == (mark, name)
        if (is_named or stands_in) and held.is_live() and held.is_here():
            return held
        held = held.outer
    return None


def stand_for(mark: object, lock_name: str) -> None:
    """Let the innermost live lease count as the lock ``lock_name`` of the function whose ``__shedlock__`` is ``mark``.

    For schedulers that have taken a function's lock in its place, perhaps on another provider object of the same
    store: the function must not find its lock held by itself, and be skipped for ever.
    """
    _live().stands_for = (mark, lock_name)


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
    provider = as_provider(held.provider)
    with _paused(held.heart):
        while _is_busy(held.heart):
            time.sleep(_MOMENT)
        with _failing(held.lease):
            return _extended(held, provider.extend(held.lease, lock_at_most_for))


async def extend_lock_async(lock_at_most_for: Duration) -> Lease:
    """:func:`extend_lock` for async tasks."""
    import asyncio  # late: must not be loaded for others

    held = _live()
    provider = as_async_provider(held.provider)
    with _paused(held.heart):
        while _is_busy_async(held.heart):  # noqa: ASYNC110 (the heartbeat may be in a thread)
            await asyncio.sleep(_MOMENT)
        with _failing(held.lease):
            return _extended(held, await provider.extend(held.lease, lock_at_most_for))


_MOMENT = 0.005


@contextmanager
def _paused(heart: Heart | None) -> Iterator[None]:
    """While the task extends its lease no heartbeat does, which might cut it down again."""
    if heart is None:
        yield
        return
    heart.pause()
    try:
        yield
    finally:
        heart.resume()


def _is_busy(heart: Heart | None) -> bool:
    return heart is not None and heart.is_busy(is_async=False)


def _is_busy_async(heart: Heart | None) -> bool:
    return heart is not None and heart.is_busy(is_async=True)


def _live(name: str | None = None) -> Held:
    held = find_live(name)
    if held is None:
        what = "any lock" if name is None else f"lock {name!r}"
        raise NotLocked(f"not inside a live lease of {what}: call it inside @scheduler_lock or 'with hold(…)'")
    return held


def _extended(held: Held, extended: Lease | None) -> Lease:
    name = held.lease.name
    if extended is None:
        if held.heart is not None:
            held.heart.tell_lost()
        else:
            held.lost_is_told = True
            emit(LeaseLost(name, held.lease, "revoked"))
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
