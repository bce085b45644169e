# Calls as people without a type checker make them; what the checker says is in tests/core/typing.
# mypy: disable-error-code="arg-type, attr-defined, call-arg, comparison-overlap, union-attr, unreachable"
"""@scheduler_lock on every kind of function."""

import asyncio
import functools
import inspect
import pickle
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    ConfigurationError,
    Executed,
    InMemoryLockProvider,
    LockRequest,
    Skipped,
    attempt,
    configure,
    current_lease,
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
    def __init__(self, tenant: str = "acme") -> None:
        self.tenant = tenant

    @scheduler_lock("method", "1m")
    def method(self, number: int) -> tuple[str, int]:
        return self.tenant, number

    @scheduler_lock("async-method", "1m")
    async def async_method(self, number: int) -> tuple[str, int]:
        return self.tenant, number

    @staticmethod
    @scheduler_lock("static", "1m")
    def static(number: int) -> int:
        return number

    @scheduler_lock("static-other-order", "1m")
    @staticmethod
    def static_other_order(number: int) -> int:
        return number

    @classmethod
    @scheduler_lock("class", "1m")
    def of_class(cls, number: int) -> tuple[type, int]:
        return cls, number

    @scheduler_lock("class-other-order", "1m")
    @classmethod
    def of_class_other_order(cls, number: int) -> tuple[type, int]:
        return cls, number


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

    def test_each_call_takes_the_lock_anew(self, provider: InMemoryLockProvider) -> None:
        assert [module_level(3), module_level(3, factor=3)] == [6, 9]
        hold_elsewhere(provider, "module-level")
        assert module_level(3) is None

    def test_what_it_raises_is_raised(self, provider: InMemoryLockProvider) -> None:
        @scheduler_lock("job", "1m")
        def job() -> None:
            raise ZeroDivisionError

        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                job()

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

    def test_the_original_carries_the_mark_too(self) -> None:
        marked: Any = module_level
        assert marked.__shedlock__.name == "module-level"
        assert marked.__wrapped__.__shedlock__ is marked.__shedlock__

    def test_wrong_arguments_are_a_type_error_and_take_no_lock(self, provider: InMemoryLockProvider) -> None:
        for call in (
            lambda: module_level(),
            lambda: module_level(1, 2),
            lambda: module_level(1, foo=2),
            lambda: module_level.attempt(),
            lambda: Service().method(),
        ):
            with pytest.raises(TypeError, match="argument"):
                call()
        assert provider.records() == []

    def test_a_provider_of_its_own(self, provider: InMemoryLockProvider) -> None:
        own = InMemoryLockProvider()

        @scheduler_lock("job", "1m", provider=own)
        def job() -> str:
            return "ran"

        hold_elsewhere(provider, "job")
        assert job() == "ran"
        hold_elsewhere(own, "job")
        assert job() is None

    def test_recursion_is_inside(self, provider: InMemoryLockProvider, heard: RecordingListener) -> None:
        @scheduler_lock("job", "1m")
        def job(depth: int) -> int:
            return depth and (job(depth - 1) or 0) + 1

        assert job(5) == 5
        assert heard.kinds().count("LockAcquired") == 1

    def test_partials_builtins_and_callable_objects(self, provider: InMemoryLockProvider) -> None:
        class Task:
            def __call__(self, number: int) -> int:
                return number + 1

        decorate = scheduler_lock("job", "1m")
        assert decorate(functools.partial(pow, 2))(5) == 32
        assert decorate(len)([1, 2]) == 2
        assert decorate(Task())(1) == 2
        assert decorate(Service("acme").method.__wrapped__.__get__(Service("b")))(1) == ("b", 1)


class TestAsyncFunctions:
    pytestmark = pytest.mark.anyio

    async def test_runs_under_the_lock(self, provider: InMemoryLockProvider) -> None:
        assert await module_level_async(3) == 3
        hold_elsewhere(provider, "module-level-async")
        assert await module_level_async(3) is None
        assert await module_level_async.attempt(3) == Skipped("module-level-async")

    async def test_an_async_provider_of_its_own(self) -> None:
        own = AsyncInMemoryLockProvider()

        @scheduler_lock("job", "1m", provider=own)
        async def job() -> object:
            return current_lease()

        assert await job()
        assert await own.record("job")

    async def test_nothing_happens_before_it_is_awaited(self, provider: InMemoryLockProvider) -> None:
        coroutine = module_level_async(3)
        assert provider.records() == []
        assert await coroutine == 3

    async def test_wrong_arguments(self, provider: InMemoryLockProvider) -> None:
        with pytest.raises(TypeError, match="argument"):
            await module_level_async()
        assert provider.records() == []

    async def test_methods(self, provider: InMemoryLockProvider) -> None:
        assert await Service().async_method(3) == ("acme", 3)
        hold_elsewhere(provider, "async-method")
        assert await Service().async_method(3) is None

    async def test_partials(self, provider: InMemoryLockProvider) -> None:
        guarded = scheduler_lock("job", "1m")(functools.partial(module_level_async.__wrapped__, 3))
        assert inspect.iscoroutinefunction(guarded)
        assert await guarded() == 3


class TestMethods:
    @pytest.mark.parametrize(
        ("call", "name", "value"),
        [
            (lambda: Service().method(3), "method", ("acme", 3)),
            (lambda: Service.method(Service("b"), 3), "method", ("b", 3)),
            (lambda: Service.static(3), "static", 3),
            (lambda: Service().static(3), "static", 3),
            (lambda: Service.static_other_order(3), "static-other-order", 3),
            (lambda: Service().static_other_order(3), "static-other-order", 3),
            (lambda: Service.of_class(3), "class", (Service, 3)),
            (lambda: Service().of_class(3), "class", (Service, 3)),
            (lambda: Service.of_class_other_order(3), "class-other-order", (Service, 3)),
            (lambda: Service().of_class_other_order(3), "class-other-order", (Service, 3)),
        ],
    )
    def test_every_kind_in_either_order(
        self, provider: InMemoryLockProvider, call: Callable[[], object], name: str, value: object
    ) -> None:
        assert call() == value
        hold_elsewhere(provider, name)
        assert call() is None

    def test_attempt(self, provider: InMemoryLockProvider) -> None:
        result = Service.method.attempt(Service(), 3)
        assert result.value == ("acme", 3)
        assert Service.static.attempt(3).value == 3

    def test_two_instances_share_the_lock(self, provider: InMemoryLockProvider) -> None:
        hold_elsewhere(provider, "method")
        assert [Service("a").method(1), Service("b").method(1)] == [None, None]


class TestAttempt:
    def test_it_tells_the_difference(self, provider: InMemoryLockProvider) -> None:
        @scheduler_lock("job", "1m", on_skip=RuntimeError)
        def job() -> None:
            return None

        result = job.attempt()
        assert isinstance(result, Executed)
        assert (result.value, result.lease.name) == (None, "job")
        hold_elsewhere(provider, "job")
        assert job.attempt() == Skipped("job", "held")


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
    def test_a_value(self, value: object) -> None:
        assert self.call(value) is value

    def test_a_callable_gets_the_skip(self) -> None:
        assert self.call(lambda skipped: skipped) == Skipped("job", "held")
        assert self.call(repr) == "Skipped(lock_name='job', reason='held')"

    def test_an_exception_class_gets_a_message(self) -> None:
        with pytest.raises(RuntimeError, match=r"lock 'job': skipped \(held\)"):
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

        with pytest.raises(TypeError, match="on_skip is a coroutine function"):
            self.call(on_skip)

    @pytest.mark.anyio
    async def test_async_functions(self) -> None:
        async def on_skip(skipped: Skipped) -> str:
            return skipped.lock_name

        async def call(on_skip: Any) -> object:
            @scheduler_lock("job", "1m", on_skip=on_skip)
            async def job() -> None:
                pytest.fail("the task ran")

            return await job()

        assert await call(on_skip) == "job"
        assert await call(lambda skipped: skipped.reason) == "held"
        assert await call("value") == "value"
        with pytest.raises(RuntimeError, match="skipped"):
            await call(RuntimeError)
        with pytest.raises(RuntimeError, match="mine"):
            await call(RuntimeError("mine"))

    def test_it_is_not_used_when_the_task_runs(self, provider: InMemoryLockProvider) -> None:
        provider.force_release("job")

        @scheduler_lock("job", "1m", on_skip=RuntimeError)
        def job() -> None: ...

        job()


class TestWhatCannotBeGuarded:
    @pytest.mark.parametrize(("attribute", "library"), [
        ("apply_async", "Celery"), ("call_local", "Huey"), ("send_with_options", "Dramatiq"),
    ])  # fmt: skip
    def test_task_objects(self, attribute: str, library: str) -> None:
        class Task:
            def __call__(self) -> None: ...

        setattr(Task, attribute, lambda self: None)
        with pytest.raises(TypeError, match=f"is a {library} task") as caught:
            scheduler_lock("job", "1m")(Task())
        assert "directly above 'def'" in str(caught.value)
        assert f"{library} decorator above it" in str(caught.value)

    def test_generator_functions(self) -> None:
        def generator() -> Iterator[int]:
            yield 1

        async def async_generator() -> AsyncIterator[int]:
            yield 1

        for function in (generator, async_generator):
            with pytest.raises(TypeError, match="generator function: its body would run after the lock was released"):
                scheduler_lock("job", "1m")(function)

    def test_a_generator_in_disguise(self, provider: InMemoryLockProvider) -> None:
        @scheduler_lock("job", "1m")
        def job() -> object:
            return (number for number in range(3))

        with pytest.raises(TypeError, match="has not run yet"):
            job()

    @pytest.mark.anyio
    async def test_a_task_or_a_future(self, provider: InMemoryLockProvider) -> None:
        """Its work may end after the release; a caller of ``attempt`` would take it for done."""
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

    def test_forgotten_parentheses(self) -> None:
        with pytest.raises(TypeError, match=r"needs a lock name: @scheduler_lock\('name'"):

            @scheduler_lock  # type: ignore[call-overload]  # on purpose
            def job() -> None: ...

    def test_context_managers_are_functions(self, provider: InMemoryLockProvider) -> None:
        """The lock is held while the context manager is made, not inside of it: that is what hold() is for."""

        @contextmanager
        def manager() -> Iterator[None]:
            yield

        scheduler_lock("job", "1m")(manager)


class TestDurationsAtDecoration:
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
    def test_bad_ones(self, durations: Any, words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            scheduler_lock("job", *durations)

    def test_a_default_that_is_too_short_for_the_minimum(self) -> None:
        @scheduler_lock("job", lock_at_least_for="20m")
        def job() -> None: ...

        with (
            configure(provider=InMemoryLockProvider()),
            pytest.raises(ConfigurationError, match=r"lock_at_least_for \(0:20:00\) is longer than"),
        ):
            job()
