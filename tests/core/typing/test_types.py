"""The types that users see. ``make check`` proves them; running the tests only proves that the lines execute."""

import os
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Never, assert_type

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    AsyncLeaderElector,
    AsyncLockProvider,
    Executed,
    InMemoryLockProvider,
    LeaderElector,
    Lease,
    LockProvider,
    Skipped,
    attempt,
    attempt_async,
    configure,
    hold,
    hold_async,
    scheduler_lock,
    try_hold,
    try_hold_async,
)
from shedlock_py.events import SkipReason

sync_provider: LockProvider = InMemoryLockProvider()
async_provider: AsyncLockProvider = AsyncInMemoryLockProvider()


@scheduler_lock("types-plain", "1m")
def plain(number: int, *, label: str = "") -> int:
    return number


@scheduler_lock("types-async", "1m", "1s", provider=async_provider)
async def plain_async(number: int) -> str:
    return str(number)


@scheduler_lock("types-value", "1m", on_skip="skipped", expected_every="1h")
def with_value() -> int:
    return 1


def say_why(skipped: Skipped) -> bytes:
    return skipped.reason.encode()


@scheduler_lock("types-callable", "1m", on_skip=say_why)
def with_callable() -> int:
    return 1


@scheduler_lock("types-exception-class", "1m", on_skip=RuntimeError)
def with_exception_class() -> int:
    return 1


@scheduler_lock("types-exception", "1m", on_skip=RuntimeError("skipped"))
async def with_exception() -> int:
    return 1


async def say_why_async(skipped: Skipped) -> bytes:
    return say_why(skipped)


@scheduler_lock("types-async-callable", "1m", on_skip=say_why_async)
async def with_async_callable() -> int:
    return 1


class Service:
    @scheduler_lock("types-method", "1m")
    def method(self, number: int) -> int:
        return number

    @scheduler_lock("types-async-method", "1m")
    async def async_method(self, number: int) -> int:
        return number

    @scheduler_lock("types-no-parameters", "1m")
    def bare(self) -> int:
        return 1

    @staticmethod
    @scheduler_lock("types-static", "1m")
    def static(number: int) -> int:
        return number

    @scheduler_lock("types-static-other-order", "1m")
    @staticmethod
    def bare_static() -> int:
        return 1

    @classmethod
    @scheduler_lock("types-class", "1m")
    def of_class(cls, number: int) -> str:
        return cls.__name__ * number

    @scheduler_lock("types-class-other-order", "1m")
    @classmethod
    def bare_of_class(cls) -> str:
        return cls.__name__


class Special(Service):
    def call_its_own(self) -> None:
        assert_type(self.bare.attempt(), Executed[int] | Skipped)
        assert_type(super().bare.attempt(), Executed[int] | Skipped)


def test_a_call_has_the_type_of_the_value_or_of_on_skip() -> None:
    with configure(provider=sync_provider):
        assert_type(plain(1, label="x"), int | None)
        assert_type(with_value(), int | str)
        assert_type(with_callable(), int | bytes)
        assert_type(with_exception_class(), int)
        assert_type(Service().method(1), int | None)
        assert plain.__name__ == plain.__qualname__ == plain.__wrapped__.__name__ == "plain"


@pytest.mark.anyio
async def test_an_awaited_call_has_the_type_of_the_value_or_of_on_skip() -> None:
    with configure(provider=sync_provider, async_provider=async_provider):
        assert_type(await plain_async(1), str | None)
        assert_type(await with_exception(), int)
        assert_type(await with_async_callable(), int | bytes)
        assert_type(await Service().async_method(1), int | None)
        coroutine: Coroutine[Any, Any, str | None] = plain_async(1)
        await coroutine


@pytest.mark.anyio
async def test_attempt_of_a_decorated_function() -> None:
    with configure(provider=sync_provider, async_provider=async_provider):
        result = plain.attempt(1, label="x")
        assert_type(result, Executed[int] | Skipped)
        if isinstance(result, Executed):
            assert_type(result.value, int)
            assert_type(result.lease, Lease)
        assert_type(with_value.attempt(), Executed[int] | Skipped)
        assert_type(await plain_async.attempt(1), Executed[str] | Skipped)


@pytest.mark.anyio
async def test_attempt_of_methods() -> None:
    service, special = Service(), Special()
    with configure(provider=sync_provider, async_provider=async_provider):
        assert_type(service.method.attempt(1), Executed[int] | Skipped)
        assert_type(service.method.attempt(number=1), Executed[int] | Skipped)
        assert_type(special.method.attempt(1), Executed[int] | Skipped)
        assert_type(Service.method.attempt(service, 1), Executed[int] | Skipped)
        assert_type(Service.method(service, 1), int | None)
        assert_type(Special.method.attempt(special, 1), Executed[int] | Skipped)
        assert_type(service.bare.attempt(), Executed[int] | Skipped)
        assert_type(Service.bare.attempt(service), Executed[int] | Skipped)
        assert_type(await service.async_method.attempt(1), Executed[int] | Skipped)
        assert_type(await Service.async_method.attempt(service, 1), Executed[int] | Skipped)
        special.call_its_own()


def test_attempt_of_static_and_class_methods() -> None:
    service = Service()
    with configure(provider=sync_provider):
        assert_type(Service.static(1), int | None)
        assert_type(Service.static.attempt(1), Executed[int] | Skipped)
        assert_type(service.static(1), int | None)
        assert_type(service.static.attempt(number=1), Executed[int] | Skipped)
        assert_type(Service.bare_static.attempt(), Executed[int] | Skipped)
        assert_type(service.bare_static.attempt(), Executed[int] | Skipped)
        assert_type(Service.of_class(1), str | None)
        assert_type(Service.of_class.attempt(1), Executed[str] | Skipped)
        assert_type(service.of_class(1), str | None)
        assert_type(service.of_class.attempt(number=1), Executed[str] | Skipped)
        assert_type(Special.of_class.attempt(1), Executed[str] | Skipped)
        assert_type(Service.bare_of_class.attempt(), Executed[str] | Skipped)
        assert_type(service.bare_of_class.attempt(), Executed[str] | Skipped)


def test_guarded_functions_fit_where_the_function_did() -> None:
    job: Callable[[int], int | None] = plain
    method: Callable[[int], int | None] = Service().method
    attempt_method: Callable[[int], Executed[int] | Skipped] = Service().method.attempt
    with configure(provider=sync_provider):
        assert job(1) == method(1) == 1
        assert isinstance(attempt_method(1), Executed)


@pytest.mark.anyio
async def test_attempt_and_hold() -> None:
    assert_type(attempt("types", lambda: 1, lock_at_most_for="1m", provider=sync_provider), Executed[int] | Skipped)
    with hold("types", lock_at_most_for="1m", provider=sync_provider, expected_every=timedelta(hours=1)) as lease:
        assert_type(lease, Lease)

    async def task() -> str:
        return "value"

    for provider in (sync_provider, async_provider):
        assert_type(
            await attempt_async("types", task, lock_at_most_for="1m", provider=provider), Executed[str] | Skipped
        )
    async with hold_async("types", lock_at_most_for="1m", provider=async_provider) as lease:
        assert_type(lease, Lease)
    async with try_hold_async("types", lock_at_most_for="1m", provider=async_provider) as tried:
        assert_type(tried, Lease | None)
    with try_hold("types", lock_at_most_for="1m", provider=sync_provider) as tried:
        assert_type(tried, Lease | None)


def truth_tells_a_run_from_a_skip() -> None:
    result = attempt("types", lambda: 1)
    assert_type(result.ran, bool)
    if result:
        assert_type(result, Executed[int])
    else:
        assert_type(result, Skipped)
        assert_type(result.reason, SkipReason)


def a_decorated_class_is_nothing() -> None:
    assert_type(scheduler_lock("types", "1m")(Service), Never)


def wrong_calls_are_errors() -> None:
    """This function is never called: each line must be an error, or mypy and pyright report its ignore as unused."""
    plain("one")  # type: ignore[arg-type]  # on purpose
    plain(1, lable="x")  # type: ignore[call-arg]  # on purpose
    plain.attempt()  # type: ignore[call-arg]  # on purpose
    Service().method("one")  # type: ignore[arg-type]  # on purpose
    Service().method.attempt("one")  # type: ignore[arg-type]  # on purpose
    Service().method.attempt(Service(), 1)  # type: ignore[call-arg, arg-type]  # on purpose
    Service.method.attempt(1)  # type: ignore[call-arg, arg-type]  # on purpose
    Service.static.attempt("one")  # type: ignore[arg-type]  # on purpose
    Service.of_class.attempt(Service, 1)  # type: ignore[call-arg, arg-type]  # on purpose
    hold("job", expected_every=1j)  # type: ignore[arg-type]  # on purpose
    hold("job", on_lost="stop")  # type: ignore[arg-type]  # on purpose
    scheduler_lock("job", expected_every=1j)  # type: ignore[call-overload]  # on purpose
    scheduler_lock("job", 1j)  # type: ignore[call-overload]  # on purpose
    attempt("job", lambda: 1, provider=async_provider)  # type: ignore[arg-type]  # on purpose
    configure(os.environ.get("DATABASE_URL"))  # type: ignore[arg-type]  # on purpose: it may be None
    configure(sync_provider, async_provider)  # type: ignore[call-arg]  # on purpose
    hold("job", provider=7)  # type: ignore[arg-type]  # on purpose


def urls_are_providers() -> None:
    """This function is never called."""
    url = "postgresql://user@host/db"
    configure(url, async_provider=url, create_schema=True)
    configure(async_provider)
    assert_type(attempt("types", lambda: 1, provider=url), Executed[int] | Skipped)
    hold("types", provider=url)
    hold_async("types", provider=url)
    scheduler_lock("types", provider=url)
    LeaderElector(url, "types")
    AsyncLeaderElector(url, "types")
