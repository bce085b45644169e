"""The types that ``@leader_only`` leaves a function with. ``make check`` proves them."""

from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from shedlock_py import InMemoryLockProvider, LeaderElector, leader_only

elector = LeaderElector(InMemoryLockProvider(), "types")


@leader_only(elector)
def plain(number: int, *, label: str = "") -> int:
    return number


@leader_only(elector)
async def plain_async(number: int) -> str:
    return str(number)


@leader_only(elector)
def without_result() -> None: ...


class Service:
    @leader_only(elector)
    def method(self, number: int) -> int:
        return number

    @leader_only(elector)
    async def async_method(self, number: int) -> int:
        return number


def test_a_call_has_the_type_of_the_value_or_none() -> None:
    assert_type(plain(1, label="x"), int | None)
    assert_type(Service().method(1), int | None)
    job: Callable[[int], int | None] = plain
    assert job(1) is None


async def test_an_awaited_call_has_the_type_of_the_value_or_none() -> None:
    assert_type(await plain_async(1), str | None)
    assert_type(await Service().async_method(1), int | None)
    coroutine: Coroutine[Any, Any, str | None] = plain_async(1)
    assert await coroutine is None


def wrong_calls_are_errors() -> None:
    """This function is never called: each line must be an error, or mypy reports its ignore as unused."""
    plain("one")  # type: ignore[arg-type]  # on purpose
    plain(1, lable="x")  # type: ignore[call-arg]  # on purpose
    Service().method("one")  # type: ignore[arg-type]  # on purpose
    leader_only(plain)  # type: ignore[arg-type]  # the usual mistake
    without_result(1)  # type: ignore[call-arg]  # on purpose
