"""``hold``, ``try_hold`` and ``attempt`` run a block of code or a task under a lock."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, ClassVar, Generic, Literal, TypeVar, Unpack

from shedlock_py.errors import hidden_frames
from shedlock_py.guard.block import AsyncBlock, Block
from shedlock_py.guard.skips import LockNotAcquired, Skipped, gates_of
from shedlock_py.model.lease import Lease
from shedlock_py.model.request import LockRequest
from shedlock_py.model.text import quoted
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.settings.options import GuardOptions, LockOptions, is_async_callable

__tracebackhide__ = hidden_frames
T = TypeVar("T")


@dataclass(frozen=True)
class Executed(Generic[T]):
    """The task ran under ``lease`` and returned ``value``. It is true: ``if attempt(…):`` means "if it ran"."""

    value: T
    lease: Lease
    ran: ClassVar[Literal[True]] = True

    def __bool__(self) -> Literal[True]:
        return True


class RequiredBlock(Block):
    """A block that does not run without the lease."""

    def __enter__(self) -> Lease:
        lease = super().__enter__()
        if lease is None:
            raise LockNotAcquired(self.skip)
        return lease


class AsyncRequiredBlock(AsyncBlock):
    async def __aenter__(self) -> Lease:
        lease = await super().__aenter__()
        if lease is None:
            raise LockNotAcquired(self.skip)
        return lease


def hold(lock: str | LockRequest, **options: Unpack[GuardOptions[LockProvider]]) -> AbstractContextManager[Lease]:
    """Hold a lock around a block of code: ``with hold("import", lock_at_most_for="5m") as lease: …``

    The block never runs without the lease. Inside a live lease of the same name and provider the block gets that lease,
    without a request to the store.

    :param lock: the lock name, or a :class:`LockRequest`.
    :param options: as for :func:`scheduler_lock`: ``lock_at_most_for``, ``lock_at_least_for``, ``provider``,
        ``once_per``, ``fire_time`` (an aware datetime), ``keep_alive``, ``on_lost``, ``expected_every``, ``recover``,
        ``max_recoveries``. With ``on_lost="cancel"``, for async code, the block raises ``LeaseLostError``.
        ``wait="30s"`` tries for so long to get a held lock, or to reach an unreachable store; without it, there is one
        attempt.
    :raises LockNotAcquired: the lock is held elsewhere, or another reason to skip; the block did not run.
    :raises ConfigurationError: a value that cannot work, or no provider.
    :raises ProviderError: the store failed; the block did not run. A failed release is logged, never raised.
    """
    return RequiredBlock(lock, LockOptions.parse("hold", options, is_async=False))


def try_hold(
    lock: str | LockRequest, **options: Unpack[GuardOptions[LockProvider]]
) -> AbstractContextManager[Lease | None]:
    """Like :func:`hold`, but run the block in any case: ``with try_hold("import") as lease: if lease: …``

    ``lease`` is None if the lock was not granted. The block must check it.
    """
    return Block(lock, LockOptions.parse("try_hold", options, is_async=False))


def attempt(
    lock: str | LockRequest, task: Callable[[], T], **options: Unpack[GuardOptions[LockProvider]]
) -> Executed[T] | Skipped:
    """Run ``task()`` under a lock. Return ``Executed(value, lease)``, which is true, or ``Skipped``, which is false.

    Parameters and errors are as for :func:`hold`. The task's exceptions are raised.
    """
    refuse_other_than_function("attempt", task)
    refuse_unfinished_function(task)
    block = Block(lock, LockOptions.parse("attempt", options, is_async=False), gates=gates_of(task))
    return run_guarded(block, task)


def run_guarded(block: Block, task: Callable[[], T]) -> Executed[T] | Skipped:
    with block as lease:
        if lease is None:
            return block.skip
        return Executed(refuse_unfinished(task()), lease)


def hold_async(
    lock: str | LockRequest, **options: Unpack[GuardOptions[AsyncLockProvider | LockProvider]]
) -> AbstractAsyncContextManager[Lease]:
    """:func:`hold` for async code. A provider for ordinary functions is called in a worker thread."""
    return AsyncRequiredBlock(lock, LockOptions.parse("hold_async", options))


def try_hold_async(
    lock: str | LockRequest, **options: Unpack[GuardOptions[AsyncLockProvider | LockProvider]]
) -> AbstractAsyncContextManager[Lease | None]:
    """:func:`try_hold` for async code."""
    return AsyncBlock(lock, LockOptions.parse("try_hold_async", options))


async def attempt_async(
    lock: str | LockRequest,
    task: Callable[[], Awaitable[T]],
    **options: Unpack[GuardOptions[AsyncLockProvider | LockProvider]],
) -> Executed[T] | Skipped:
    """:func:`attempt` for async tasks: ``task()`` is awaited."""
    refuse_other_than_function("attempt_async", task)
    block = AsyncBlock(lock, LockOptions.parse("attempt_async", options), gates=gates_of(task))
    return await run_guarded_async(block, task)


async def run_guarded_async(block: AsyncBlock, task: Callable[[], Awaitable[T]]) -> Executed[T] | Skipped:
    async with block as lease:
        if lease is None:
            return block.skip
        work = task()
        if not inspect.isawaitable(work):
            raise TypeError(f"{task!r} returned a {type(work).__name__}, not something to await: use attempt or hold")
        return Executed(refuse_unfinished(await work, was_awaited=True), lease)


def refuse_other_than_function(guard: str, task: object) -> None:
    """Refuse a ``task`` that cannot be called. Most likely it is the result of a call.

    :raises TypeError: ``task`` is not a function.
    """
    if inspect.iscoroutine(task):
        task.close()  # or Python warns that it was never awaited
        raise TypeError(f"{guard} takes a function, not the coroutine of its call: {guard}(name, task), without ()")
    if not callable(task):
        raise TypeError(f"{guard} takes a function, not {quoted(task)}: {guard}(name, task), without () after it")
    if isinstance(task, type):
        raise TypeError(f"{guard} takes a function, and {task.__name__} is a class: give the method that does the work")


def refuse_unfinished_function(task: Callable[..., Any], async_twin: str = "attempt_async or hold_async") -> None:
    """Refuse a function with a body that would run after the release.

    :raises TypeError: ``task`` is a coroutine or generator function.
    """
    if is_async_callable(task):
        raise TypeError(f"{task!r} is a coroutine function: use {async_twin}")
    if inspect.isgeneratorfunction(task) or inspect.isasyncgenfunction(task):
        raise TypeError(
            f"{task!r} is a generator function: its body would run after the lock was released. Guard the function "
            f"that does the work, with @scheduler_lock directly above its 'def'"
        )


@contextmanager
def _block() -> Iterator[None]:
    yield


@asynccontextmanager
async def _async_block() -> AsyncIterator[None]:
    yield


_UNFINISHED = (CoroutineType, GeneratorType, AsyncGeneratorType, type(_block()), type(_async_block()))
"""The types of results that have not begun their work."""


def refuse_unfinished(value: T, *, was_awaited: bool = False) -> T:
    """Return ``value`` if the task's work is done.

    :param was_awaited: ``value`` is the result of a coroutine. It may be awaitable without need, as some clients are.
    :raises TypeError: ``value`` is an awaitable, a generator, or a context manager made of a generator: its body would
        run after the release. Or it is a Task or Future: its work may end after the release.
    """
    if hasattr(type(value), "add_done_callback"):  # futures of all libraries have it; the type, because mocks have all
        raise TypeError(
            f"the guarded task returned a {type(value).__name__}, whose work may end after the lock was released. Make "
            f"it an 'async def' that awaits the work, or wait for its result before returning"
        )
    if not isinstance(value, _UNFINISHED) and (was_awaited or not isinstance(value, Awaitable)):
        return value
    if isinstance(value, CoroutineType):
        value.close()  # or Python warns that it was never awaited
    raise TypeError(
        f"the guarded task returned a {type(value).__name__} that has not run yet; the lock would be released before "
        f"it does. Guard the function that does the work ('async def' tasks are awaited under the lock)"
    )
