# Calls without a type checker; the types are tested in tests/core/typing.
# mypy: disable-error-code="arg-type, attr-defined, call-arg, comparison-overlap, union-attr, unreachable"
"""@scheduler_lock on every kind of function."""

import asyncio
import functools
import inspect
import pickle
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    ConfigurationError,
    InMemoryLockProvider,
    LockRequest,
    Skipped,
    attempt,
    configure,
    current_lease,
    hold,
    hold_async,
    scheduler_lock,
)
from shedlock_py.testing import RecordingListener


@scheduler_lock("module-level", "1m")
def module_level(number: int, *, factor: int = 2) -> int:
    """Multiplies."""
    return number * factor


@scheduler_lock("module-level-async", "1m")
async def module_level_async(number: int) -> int:
    return number


class Service:
    @scheduler_lock("method", "1m")
    def method(self, number: int) -> int:
        return number


def hold_elsewhere(provider: InMemoryLockProvider, *names: str) -> None:
    for name in names:
        assert provider.acquire(LockRequest(name, "10m"))


class TestFunctions:
    def test_runs_under_the_lock_and_returns_the_value(self, provider: InMemoryLockProvider) -> None:
        @scheduler_lock("job", "30m", "1m")
        def job() -> object:
            return current_lease()

        lease: Any = job()
        assert (lease.name, lease.lock_at_most_for) == ("job", timedelta(minutes=30))
        assert lease.lock_at_least_for == timedelta(minutes=1)
        assert job() is None  # the minimum hold

    def test_it_is_still_the_function(self) -> None:
        assert module_level.__name__ == "module_level"
        assert module_level.__doc__ == "Multiplies."
        assert inspect.isfunction(module_level)
        assert list(inspect.signature(module_level).parameters) == ["number", "factor"]
        assert inspect.signature(module_level).return_annotation is int
        assert inspect.unwrap(module_level) is module_level.__wrapped__
        assert inspect.iscoroutinefunction(module_level_async)
        assert not inspect.iscoroutinefunction(module_level)
        for function in (module_level, module_level_async):
            assert pickle.loads(pickle.dumps(function)) is function

    def test_the_original_carries_the_spec_too(self) -> None:
        carrier: Any = module_level
        assert carrier.__shedlock__.name == "module-level"
        assert carrier.__wrapped__.__shedlock__ is carrier.__shedlock__

    def test_wrong_arguments_are_a_type_error_and_take_no_lock(self, provider: InMemoryLockProvider) -> None:
        for call in (
            lambda: module_level(),
            lambda: module_level(1, 2),
            lambda: module_level(1, foo=2),
            lambda: module_level.attempt(),
            lambda: Service().method(),
            lambda: Service().method.attempt(),
            lambda: asyncio.run(module_level_async()),
            lambda: asyncio.run(module_level_async.attempt()),
        ):
            with pytest.raises(TypeError, match="argument"):
                call()
        assert provider.records() == []

    def test_a_provider_of_its_own(self, provider: InMemoryLockProvider) -> None:
        other = InMemoryLockProvider()

        @scheduler_lock("job", "1m", provider=other)
        def job() -> str:
            return "ran"

        hold_elsewhere(provider, "job")
        assert job() == "ran"
        hold_elsewhere(other, "job")
        assert job() is None

    def test_recursion_is_inside(self, provider: InMemoryLockProvider, recorded: RecordingListener) -> None:
        @scheduler_lock("job", "1m")
        def job(depth: int) -> int:
            return depth and (job(depth - 1) or 0) + 1

        assert job(5) == 5
        assert recorded.kinds().count("LockAcquired") == 1

    def test_partials_builtins_and_callable_objects(self, provider: InMemoryLockProvider) -> None:
        class Task:
            def __call__(self, number: int) -> int:
                return number + 1

        decorate = scheduler_lock("job", "1m")
        assert decorate(functools.partial(pow, 2))(5) == 32
        assert decorate(len)([1, 2]) == 2
        assert decorate(Task())(1) == 2
        assert decorate(Service().method.__wrapped__.__get__(Service()))(1) == 1


class TestAsyncFunctions:
    pytestmark = pytest.mark.anyio

    async def test_runs_under_the_lock(self, provider: InMemoryLockProvider) -> None:
        assert await module_level_async(3) == 3
        hold_elsewhere(provider, "module-level-async")
        assert await module_level_async(3) is None
        assert await module_level_async.attempt(3) == Skipped("module-level-async")

    async def test_an_async_provider_of_its_own(self) -> None:
        other = AsyncInMemoryLockProvider()
        assert await scheduler_lock("job", "1m", provider=other)(module_level_async.__wrapped__)(3) == 3
        assert await other.record("job")

    async def test_a_partial_of_an_async_function_is_guarded_as_one(self, provider: InMemoryLockProvider) -> None:
        guarded = scheduler_lock("sync-{number}", "1m")(functools.partial(module_level_async.__wrapped__))
        assert inspect.iscoroutinefunction(guarded)
        assert await guarded(3) == 3
        assert provider.record("sync-3")


class TestOnSkip:
    @pytest.fixture(autouse=True)
    def _held(self, provider: InMemoryLockProvider) -> None:
        hold_elsewhere(provider, "job")

    def call(self, on_skip: Any) -> Any:
        @scheduler_lock("job", "1m", on_skip=on_skip)
        def job() -> None:
            pytest.fail("the task ran")

        return job()

    @pytest.mark.parametrize("value", ["skipped", 0, None, [], Skipped("x")])
    def test_a_value_is_returned_as_it_is(self, value: object) -> None:
        assert self.call(value) is value

    def test_a_callable_gets_the_skip_and_an_exception_class_a_message(self) -> None:
        assert self.call(repr) == "Skipped(lock_name='job', reason='held', holder=None)"
        with pytest.raises(RuntimeError, match="lock 'job' was not granted: another holder has it"):
            self.call(RuntimeError)

    def test_an_exception_is_raised_as_it_is(self) -> None:
        error = RuntimeError("mine")
        lengths = set()
        for _ in range(3):
            with pytest.raises(RuntimeError) as caught:
                self.call(error)
            assert caught.value is error
            lengths.add(len(caught.traceback))
        assert len(lengths) == 1  # tracebacks do not pile up

    def test_a_coroutine_function_on_an_ordinary_function_is_refused(self) -> None:
        async def on_skip(skipped: Skipped) -> None: ...

        class Object:
            async def __call__(self, skipped: Any) -> None: ...

        for given in (on_skip, Object(), functools.partial(on_skip)):
            with pytest.raises(TypeError, match="on_skip is a coroutine function"):
                self.call(given)
        with pytest.raises(ConfigurationError, match="on_lost is a coroutine function"):
            scheduler_lock("job", "1m", on_lost=Object())(lambda: None)
        with pytest.raises(ConfigurationError, match="is not an ordinary function that takes an event"):
            configure(listeners=[Object()])  # type: ignore[list-item]  # the mistake

    @pytest.mark.anyio
    async def test_an_async_function_accepts_every_kind_of_on_skip(self) -> None:
        async def on_skip(skipped: Skipped) -> str:
            return skipped.lock_name

        async def job() -> None:
            pytest.fail("the task ran")

        async def call(on_skip: Any) -> object:
            return await scheduler_lock("job", "1m", on_skip=on_skip)(job)()

        assert await call(on_skip) == "job"
        assert await call(lambda skipped: skipped.reason) == "held"
        assert await call("value") == "value"
        with pytest.raises(RuntimeError, match="was not granted"):
            await call(RuntimeError)
        with pytest.raises(RuntimeError, match="mine"):
            await call(RuntimeError("mine"))


class TestWhatCannotBeGuarded:
    @pytest.mark.parametrize(("attribute", "library"), [
        ("apply_async", "Celery"), ("call_local", "Huey"), ("send_with_options", "Dramatiq"),
    ])  # fmt: skip
    def test_the_task_object_of_a_queue_library_is_refused(self, attribute: str, library: str) -> None:
        class Task:
            def __call__(self) -> None: ...

        setattr(Task, attribute, lambda self: None)
        with pytest.raises(TypeError, match=f"is a {library} task") as caught:
            scheduler_lock("job", "1m")(Task())
        assert "directly above 'def'" in str(caught.value)
        assert f"{library} decorator above it" in str(caught.value)

    def test_a_generator_function_is_refused(self) -> None:
        def generator() -> Iterator[int]:
            yield 1

        async def async_generator() -> AsyncIterator[int]:
            yield 1

        for function in (generator, async_generator):
            with pytest.raises(TypeError, match="generator function: its body would run after the lock was released"):
                scheduler_lock("job", "1m")(function)

    @pytest.mark.anyio
    async def test_a_task_or_a_future(self, provider: InMemoryLockProvider) -> None:
        """Its work may end after the release, while a caller of ``attempt`` believes it done."""
        loop = asyncio.get_running_loop()
        running = loop.create_task(asyncio.sleep(0))
        with ThreadPoolExecutor(1) as pool:
            for future in (running, loop.create_future(), pool.submit(time.sleep, 0), asyncio.shield(running)):
                for call in (scheduler_lock("job", "1m")(lambda future=future: future), lambda f=future: self.hold(f)):
                    with pytest.raises(
                        TypeError, match=f"returned a {type(future).__name__}, whose work may end after"
                    ):
                        call()
                    assert not provider.records()[0].is_held
        await running

        async def returns_one() -> object:
            return loop.create_future()

        with pytest.raises(TypeError, match="returned a Future"):
            await scheduler_lock("job", "1m")(returns_one)()

    def hold(self, value: object) -> None:
        attempt("job", lambda: value, lock_at_most_for="1m")

    @pytest.mark.parametrize("thing", [Service, 5, "name", property(lambda self: 1)])
    def test_classes_and_other_things(self, thing: Any) -> None:
        with pytest.raises(TypeError, match="guards functions and methods"):
            scheduler_lock("job", "1m")(thing)

    def test_the_decorator_without_parentheses_is_refused(self) -> None:
        with pytest.raises(TypeError, match=r"needs a lock name: @scheduler_lock\('name'"):

            @scheduler_lock  # type: ignore[call-overload]  # on purpose
            def job() -> None: ...


class TestOptions:
    @pytest.mark.parametrize(
        ("durations", "words"),
        [
            (("10", None), "lock_at_most_for='10'"),
            ((0, None), "lock_at_most_for=0 is zero"),
            ((True, None), "lock_at_most_for=True"),
            (("1m", -1), "lock_at_least_for=-1 is negative"),
            (("1m", "2m"), "longer than lock_at_most_for"),
            (("1h", "soon"), "lock_at_least_for='soon'"),
        ],
    )
    def test_a_bad_duration_is_refused(self, durations: Any, words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            scheduler_lock("job", *durations)

    @pytest.mark.parametrize(
        "function", [scheduler_lock, hold, hold_async, lambda *args, **kw: attempt(*args, print, **kw)]
    )
    def test_a_misspelt_option_names_the_function(self, function: Any) -> None:
        name = getattr(function, "__name__", "").replace("<lambda>", "attempt")
        with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'keepalive'"):
            function("job", keepalive=True)

    def test_a_default_that_is_too_short_for_the_minimum(self) -> None:
        @scheduler_lock("job", lock_at_least_for="20m")
        def job() -> None: ...

        with (
            configure(provider=InMemoryLockProvider()),
            pytest.raises(ConfigurationError, match=r"lock_at_least_for \(0:20:00\) is longer than"),
        ):
            job()
