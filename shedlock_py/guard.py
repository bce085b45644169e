"""``hold`` and ``attempt``: run a block of code or a task under a lock."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Generic, TypeVar, Unpack

from shedlock_py.block import AsyncBlock, Block
from shedlock_py.context import Skipped, gates_of
from shedlock_py.lease import Lease
from shedlock_py.options import GuardOptions, LockOptions
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.request import LockRequest

T = TypeVar("T")


@dataclass(frozen=True)
class Executed(Generic[T]):
    """The task ran under ``lease`` and returned ``value``."""

    value: T
    lease: Lease


def hold(
    lock: str | LockRequest, **options: Unpack[GuardOptions[LockProvider]]
) -> AbstractContextManager[Lease | None]:
    """Hold a lock around a block of code: ``with hold("import", lock_at_most_for="5m") as lease: if lease: …``

    ``lease`` is None when the lock is held elsewhere. The block runs all the same, and must check it. Inside a live
    lease of the same name and provider the block gets that lease, without a request to the store.

    :param lock: the lock name, or a whole :class:`LockRequest`.
    :param options: as for :func:`scheduler_lock`: ``lock_at_most_for``, ``lock_at_least_for``, ``provider``,
        ``keep_alive``, ``on_lost``, ``expected_every``. ``on_lost="cancel"`` is for async code: ``LeaseLostError`` out
        of the block.
    :raises ConfigurationError: a value that cannot work, or no provider.
    :raises ProviderError: the store failed; the block did not run. A failing release is logged, never raised.
    """
    return Block(lock, LockOptions.parse("hold", options, is_async=False))


def attempt(
    lock: str | LockRequest, task: Callable[[], T], **options: Unpack[GuardOptions[LockProvider]]
) -> Executed[T] | Skipped:
    """Run ``task()`` under a lock. Returns whether it ran: ``Executed(value, lease)`` or ``Skipped``.

    Parameters and errors as for :func:`hold`; what the task raises is raised.
    """
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
) -> AbstractAsyncContextManager[Lease | None]:
    """:func:`hold` for async code. A provider for ordinary functions is called in a worker thread."""
    return AsyncBlock(lock, LockOptions.parse("hold_async", options))


async def attempt_async(
    lock: str | LockRequest,
    task: Callable[[], Awaitable[T]],
    **options: Unpack[GuardOptions[AsyncLockProvider | LockProvider]],
) -> Executed[T] | Skipped:
    """:func:`attempt` for async tasks: ``task()`` is awaited."""
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


def refuse_unfinished_function(task: Callable[..., Any]) -> None:
    """:raises TypeError: ``task`` is a coroutine or generator function, whose body would run after the release."""
    if inspect.iscoroutinefunction(task):
        raise TypeError(f"{task!r} is a coroutine function: use attempt_async or hold_async")
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
"""The types of results whose work has not begun."""


def refuse_unfinished(value: T, *, was_awaited: bool = False) -> T:
    """``value``, if the task's work is done.

    :param was_awaited: it is the result of a coroutine, which may be a client that can be awaited, and need not be.
    :raises TypeError: the task returned something to await, or a generator or a context manager made of one, whose
        body would run after the release; or a Task or Future, whose work may end after it.
    """
    if hasattr(type(value), "add_done_callback"):  # as futures of all libraries have; the type, for mocks have anything
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
