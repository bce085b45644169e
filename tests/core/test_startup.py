"""``check()``: the problems that an application has at its start, before the first job runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    ConfigurationError,
    InMemoryLockProvider,
    check,
    check_async,
    configure,
    reset,
    scheduler_lock,
    spec,
)
from shedlock_py.testing import FakeClock
from tests.support.doubles import AsyncFaultyProvider, FaultyProvider

SHARED = "locks in memory guard nothing between processes"


@pytest.fixture(autouse=True)
def nothing_is_declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The functions of other tests are no functions of this application."""
    monkeypatch.setattr(spec, "declared", type(spec.declared)())
    monkeypatch.setattr("shedlock_py.decorator.declared", spec.declared)
    with reset():
        yield


@pytest.fixture(params=[check, check_async], ids=["check", "check_async"])
async def problems(request: pytest.FixtureRequest) -> Callable[..., Any]:
    async def run(**options: bool) -> list[tuple[str, str]]:
        found = request.param(**options)
        if inspect.isawaitable(found):
            found = await found
        return [(each.status, str(each)) for each in found]

    return run


def sqlite(directory: Path) -> str:
    return f"sqlite:///{directory}/locks.db"


async def test_all_is_well(problems: Any, tmp_path: Path) -> None:
    configure(sqlite(tmp_path), create_schema=True)

    @scheduler_lock("job")
    def job() -> None: ...

    assert await problems() == []
    assert await problems(strict=True) == []


async def test_without_a_provider_each_function_is_a_problem(problems: Any) -> None:
    @scheduler_lock("job")
    def job() -> None: ...

    [(status, text)] = await problems()
    assert status == "failed"
    assert text.startswith(f"{__name__}.test_without")
    assert "job: no provider for lock 'job': configure() was not called" in text
    with pytest.raises(ConfigurationError, match="no provider for lock 'job'"):
        await problems(strict=True)


async def test_a_table_that_is_missing(problems: Any, tmp_path: Path) -> None:
    configure(sqlite(tmp_path))
    [(status, text)] = await problems()
    assert status == "failed"
    assert "shedlock schema" in text or "create_schema" in text


async def test_a_store_that_does_not_reply(problems: Any) -> None:
    configure(FaultyProvider(fail=["record"]))
    assert [status for status, _ in await problems()] == ["failed"]


async def test_a_store_in_memory_is_a_warning(problems: Any) -> None:
    configure(InMemoryLockProvider())
    [(status, text)] = await problems()
    assert (status, text.partition(" — ")[0]) == ("warning", SHARED)


async def test_a_lock_without_durations(problems: Any, tmp_path: Path) -> None:
    configure(sqlite(tmp_path), create_schema=True, default_lock_at_most_for=None)

    @scheduler_lock("job")
    def job() -> None: ...

    @scheduler_lock("other", "1m")
    def other() -> None: ...

    [(status, text)] = await problems()
    assert status == "failed"
    assert "lock 'job' has no lock_at_most_for" in text


async def test_one_lock_name_on_two_functions(problems: Any, tmp_path: Path) -> None:
    configure(sqlite(tmp_path), create_schema=True)

    @scheduler_lock("job")
    def one() -> None: ...

    @scheduler_lock("job")
    def two() -> None: ...

    @scheduler_lock("sync-{tenant}")
    def a(tenant: str) -> None: ...

    @scheduler_lock("sync-{tenant}")
    def b(tenant: str) -> None: ...

    [(status, text)] = await problems()
    assert status == "warning"
    assert "lock 'job' guards" in text
    assert "one and " in text
    assert "give each function a lock name of its own" in text


async def test_an_ordinary_function_needs_more_than_an_async_provider(problems: Any) -> None:
    configure(async_provider=AsyncInMemoryLockProvider())

    @scheduler_lock("job")
    def job() -> None: ...

    @scheduler_lock("async-job")
    async def async_job() -> None: ...

    failed = [text for status, text in await problems() if status == "failed"]
    assert len(failed) == 1
    assert "guards an ordinary function, but there is only an async provider" in failed[0]


async def test_the_store_of_one_lock_is_checked_too(problems: Any, tmp_path: Path) -> None:
    configure(sqlite(tmp_path), create_schema=True)

    @scheduler_lock("job", provider=f"sqlite:///{tmp_path}/other.db")
    def job() -> None: ...

    assert [status for status, _ in await problems()] == ["failed"]


async def test_an_async_provider_is_asked_on_its_own_loop() -> None:
    store = AsyncFaultyProvider(clock=FakeClock())
    configure(async_provider=store)
    await check_async()
    assert store.calls["record"] == 1


async def test_where_locking_is_off_there_is_no_store(problems: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEDLOCK_ACTIVE", "0")

    @scheduler_lock("job")
    def job() -> None: ...

    assert await problems() == []
