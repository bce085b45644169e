"""A block may be entered and left in any way: the lease is released, and exceptions pass unchanged."""

import asyncio
import itertools
import sys
import traceback
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import copy_context
from types import CodeType, FrameType
from typing import Any

import pytest

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    LockExtended,
    TaskFinished,
    attempt,
    configure,
    hold,
    hold_async,
    scheduler_lock,
    try_hold,
    try_hold_async,
)
from shedlock_py.guard.block import BaseBlock, Block
from shedlock_py.guard.context import running
from shedlock_py.testing import RecordingListener
from tests.support.polling import until, wait_until

Place = tuple[CodeType, str]
"""A function, and "call" or "return" of it."""


class Interruption:
    """Ctrl-C at the n-th moment, between two places, when Python notices it: a call, or the return of a C function."""

    def __init__(self, number: int, begins: Place, ends: Place) -> None:
        self._left = number
        self._begins, self._ends = begins, ends
        self._is_between = False
        self.has_come = False

    def __enter__(self) -> None:
        self._before = sys.getprofile()
        sys.setprofile(self._on_event)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)

    def _on_event(self, frame: FrameType, event: str, argument: object) -> None:
        if (frame.f_code, event) == self._begins:
            self._is_between = True
        elif (frame.f_code, event) == self._ends:
            self._is_between = False
        if self._is_between and event in ("call", "c_return"):
            self._left -= 1
            if self._left < 0:
                sys.setprofile(None)
                self.has_come = True
                raise KeyboardInterrupt


def task() -> None: ...


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        ((InMemoryLockProvider.acquire.__code__, "return"), (task.__code__, "call")),
        ((BaseBlock.finish.__code__, "call"), (BaseBlock.finish.__code__, "return")),
    ],
    ids=["from the grant to the task", "while the listeners are notified of the end"],
)
def test_i3_an_interruption_releases(provider: InMemoryLockProvider, begins: Place, ends: Place) -> None:
    for number in itertools.count():
        interruption = Interruption(number, begins, ends)
        with suppress(KeyboardInterrupt), interruption:
            # in its own context, so that leftovers of an interruption at the very end go with it
            copy_context().run(attempt, "job", task)
        assert not provider.records()[0].is_held, number
        running.clear()  # leftovers are here too
        if not interruption.has_come:
            break  # all moments were tried
    assert number >= 10


class Odd(BaseException):
    pass


def in_a_block(task: Callable[[], object]) -> None:
    with hold("job"):
        task()


def decorated(task: Callable[[], object]) -> None:
    scheduler_lock("job")(task)()


def assert_came_out_as_it_was(error: BaseException, provider: InMemoryLockProvider, frames: list[str]) -> None:
    assert (error.__cause__, error.__context__, error.__suppress_context__) == (None, None, False)
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:] == [*frames, "fail"]
    assert not provider.records()[0].is_held


@pytest.mark.parametrize(("way", "frames"), [(in_a_block, ["in_a_block"]), (decorated, ["decorated", "guarded"])])
@pytest.mark.parametrize("kind", [ValueError, StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt, Odd])
def test_i8_what_the_task_raises_comes_out_as_it_was(
    provider: InMemoryLockProvider, way: Any, frames: list[str], kind: type[BaseException]
) -> None:
    error = kind("why")

    def fail() -> None:
        raise error

    with pytest.raises(kind) as caught:
        way(fail)
    assert caught.value is error
    assert_came_out_as_it_was(error, provider, frames)


async def in_an_async_block(task: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with hold_async("job"):
        await task()


async def async_decorated(task: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await scheduler_lock("job")(task)()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("way", "frames"),
    [(in_an_async_block, ["in_an_async_block"]), (async_decorated, ["async_decorated", "guarded"])],
)
@pytest.mark.parametrize("kind", [ValueError, StopAsyncIteration, GeneratorExit, Odd])
async def test_i8_likewise_in_async_code(
    provider: InMemoryLockProvider, way: Any, frames: list[str], kind: type[BaseException]
) -> None:
    error = kind("why")

    async def fail() -> None:
        raise error

    with pytest.raises(kind) as caught:
        await way(fail)
    assert caught.value is error
    assert_came_out_as_it_was(error, provider, frames)


def test_a_generator_that_is_closed_inside_of_a_block_releases(provider: InMemoryLockProvider) -> None:
    def generator() -> Generator[None, None, None]:
        with hold("job"):
            yield

    numbers = generator()
    next(numbers)
    assert provider.records()[0].is_held
    numbers.close()
    assert not provider.records()[0].is_held


def interrupted_on_the_way_out() -> None:
    """Press Ctrl-C at the first moment of ``__exit__``, which Python cannot undo; an interactive session goes on."""

    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        if (frame.f_code, event) == (Block.__exit__.__code__, "call"):
            sys.setprofile(None)
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), hold("job", lock_at_most_for="300ms", keep_alive=True):
        sys.setprofile(interrupt)


def entered_only() -> None:
    hold("job", lock_at_most_for="300ms", keep_alive=True).__enter__()


@pytest.mark.parametrize("way", [interrupted_on_the_way_out, entered_only])
def test_i3_a_block_that_is_never_left_is_not_kept_alive(way: Callable[[], None]) -> None:
    provider, recorded = InMemoryLockProvider(), RecordingListener()
    with configure(provider=provider, listeners=[recorded]):
        copy_context().run(way)
        running.clear()  # left behind by such a block
        sent = len(recorded.of(LockExtended))
        wait_until(lambda: not provider.records()[0].is_held)
    assert len(recorded.of(LockExtended)) <= sent + 1, "but for one that was under way"


@pytest.mark.anyio
async def test_i3_nor_is_one_on_an_event_loop() -> None:
    provider, recorded = InMemoryLockProvider(), RecordingListener()
    with configure(provider=provider, listeners=[recorded]):
        await asyncio.create_task(hold_async("job", lock_at_most_for="300ms", keep_alive=True).__aenter__())
        running.clear()  # left behind by such a block
        sent = len(recorded.of(LockExtended))
        await until(lambda: not provider.records()[0].is_held)
    assert len(recorded.of(LockExtended)) <= sent + 1, "but for one that was under way"


def test_i2_a_block_is_for_one_use_and_keeps_its_lease_and_its_store(
    provider: InMemoryLockProvider, recorded: RecordingListener
) -> None:
    block = hold("job")
    with block as lease:
        with configure(provider=InMemoryLockProvider()), pytest.raises(RuntimeError, match="for one use"), block:
            pytest.fail("it was entered again")
        assert lease is not None
        assert lease.is_trusted()
        assert provider.records()[0].is_held
    with pytest.raises(RuntimeError, match="for one use"), block:
        pytest.fail("it was entered again")
    block.__exit__(None, None, None)
    assert recorded.kinds() == ["LockAcquired", "TaskFinished", "LockReleased"]


async def test_a_block_is_either_for_ordinary_or_for_async_code(provider: InMemoryLockProvider) -> None:
    for_with: Any
    for for_with in (hold("job"), try_hold("job")):
        with pytest.raises(TypeError, match="for 'async with', use hold_async"):
            async with for_with:
                pytest.fail("the block ran")
    for_async_with: Any
    for for_async_with in (hold_async("job"), try_hold_async("job")):
        with pytest.raises(TypeError, match="for 'with', use hold"), for_async_with:
            pytest.fail("the block ran")


@pytest.mark.parametrize("name", [None, 7, "", "x" * 65])
def test_a_bad_name_is_refused_inside_of_another_lock_too(provider: InMemoryLockProvider, name: Any) -> None:
    """A bad name matches no enclosing lease, so the task would run under another lock."""
    with hold("job"):
        with pytest.raises(ConfigurationError):
            hold(name)
        with pytest.raises(ConfigurationError):
            attempt(name, lambda: pytest.fail("it ran without a lock of its own"))


@pytest.mark.parametrize(("code", "outcome"), [(None, "succeeded"), (0, "succeeded"), (1, "failed"), ("why", "failed")])
def test_i8_a_task_that_ends_the_program(provider: InMemoryLockProvider, code: Any, outcome: str) -> None:
    recorded = RecordingListener()
    with configure(provider=provider, listeners=[recorded]), pytest.raises(SystemExit):
        attempt("job", lambda: sys.exit(code), lock_at_most_for="1m")
    (finished,) = recorded.of(TaskFinished)
    assert finished.outcome == outcome
    assert (finished.error is None) is (outcome == "succeeded")
