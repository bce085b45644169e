"""``check()``: problems that an application has at its start, before the first job runs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    ConfigurationError,
    InMemoryLockProvider,
    LockRecord,
    check,
    check_async,
    configure,
    reset,
    scheduler_lock,
)
from shedlock_py.guard import spec
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.testing import FakeClock
from tests.support.doubles import AsyncFaultyProvider, FaultyProvider

SHARED = "locks in memory guard nothing between processes"


@pytest.fixture(autouse=True)
def nothing_is_declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide functions that other tests have declared."""
    monkeypatch.setattr(spec, "declared", type(spec.declared)())
    monkeypatch.setattr("shedlock_py.guard.decorator.declared", spec.declared)
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
    (tmp_path / "locks.db").touch()
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


async def test_a_configured_limit_of_keep_alive_that_is_not_longer_than_a_lease(problems: Any, tmp_path: Path) -> None:
    configure(sqlite(tmp_path), create_schema=True, keep_alive="2h")

    @scheduler_lock("job", "3h")
    def job() -> None: ...

    [(status, text)] = await problems()
    assert status == "failed"
    assert "keep_alive (2:00:00) must be longer than lock_at_most_for (3:00:00)" in text


async def test_i14_a_function_that_could_not_be_recovered(
    problems: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(sqlite(tmp_path), create_schema=True)

    @scheduler_lock("job", "1m", once_per="1h", recover=True)
    def job() -> None: ...

    [(status, text)] = await problems()
    assert status == "failed"
    assert "lock 'job': recover=True needs keep_alive=True, here or in configure()" in text
    with configure(keep_alive=True):
        assert await problems() == []
        monkeypatch.setattr(SqlAlchemyLockProvider, "recover", None)
        [(status, text)] = await problems()
    assert status == "failed"
    assert "recover=True needs a provider with the method recover: SqlAlchemyLockProvider" in text


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


async def test_an_async_provider_is_called_on_its_own_loop() -> None:
    store = AsyncFaultyProvider(clock=FakeClock())
    configure(async_provider=store)
    await check_async()
    assert store.calls["record"] == 1


async def test_where_locking_is_off_there_is_no_store(problems: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEDLOCK_ACTIVE", "0")

    @scheduler_lock("job")
    def job() -> None: ...

    assert await problems() == []


async def test_without_functions_too_it_is_a_problem_that_nothing_was_checked(
    problems: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(status, text)] = await problems()
    assert status == "failed"
    assert text.startswith("nothing was checked: there is no provider — configure() was not called in this process")
    with pytest.raises(ConfigurationError, match="nothing was checked"):
        await problems(strict=True)
    monkeypatch.setenv("SHEDLOCK_STORE", "memory://")
    [(_, text)] = await problems()
    assert "SHEDLOCK_STORE is set, but nothing has read it" in text


async def test_a_provider_of_one_function_only(problems: Any, tmp_path: Path) -> None:
    configure(sqlite(tmp_path), create_schema=True)
    reset()

    @scheduler_lock("job", provider=sqlite(tmp_path))
    def job() -> None: ...

    assert await problems() == []


def test_check_cannot_await_an_async_provider() -> None:
    configure(async_provider=AsyncInMemoryLockProvider())
    [found] = check()
    assert found.status == "warning"
    assert str(found) == (
        "AsyncInMemoryLockProvider was not checked: check() cannot await an async provider — await check_async()"
    )


def test_check_leaves_out_the_async_twin_of_a_sync_provider(tmp_path: Path) -> None:
    configure(sqlite(tmp_path), async_provider=AsyncFaultyProvider(), create_schema=True)
    assert check() == []


async def test_check_async_visits_both_kinds(tmp_path: Path) -> None:
    asynchronous = AsyncFaultyProvider(clock=FakeClock())
    configure(sqlite(tmp_path), async_provider=asynchronous)
    [found, _] = await check_async()
    assert found.status == "failed"
    assert f"there is no SQLite file {tmp_path}/locks.db" in str(found)
    assert asynchronous.calls["record"] == 1


@pytest.mark.parametrize("driver", ["", "+aiosqlite"])
async def test_a_file_that_is_missing_is_not_created(problems: Any, tmp_path: Path, driver: str) -> None:
    @scheduler_lock("job", provider=f"sqlite{driver}:///{tmp_path}/locks.db")
    async def job() -> None: ...

    await problems()
    found = await check_async()
    assert f"there is no SQLite file {tmp_path}/locks.db" in str(found[0])
    assert os.listdir(tmp_path) == []


class Raising(InMemoryLockProvider):
    def record(self, name: str) -> LockRecord | None:
        raise RuntimeError("boom")


class AsyncRaising(AsyncInMemoryLockProvider):
    async def record(self, name: str) -> LockRecord | None:
        raise RuntimeError("boom")


async def test_an_exception_of_a_provider(problems: Any) -> None:
    configure(Raising())
    [(status, text)] = await problems()
    assert status == "failed"
    assert "RuntimeError('boom')" in text
    configure(async_provider=AsyncRaising())
    [found] = await check_async()
    assert (found.status, "RuntimeError('boom')" in str(found)) == ("failed", True)


async def test_a_provider_that_keeps_no_records(problems: Any) -> None:
    class Least:
        def acquire(self, request: object) -> None: ...
        def release(self, lease: object) -> None: ...

    configure(Least())  # type: ignore[arg-type]  # the least that a guard needs
    assert await problems() == []


async def test_each_store_is_reached_once(problems: Any) -> None:
    store = FaultyProvider()
    configure(store)
    for number in range(5):

        @scheduler_lock(f"job-{number}")
        async def job() -> None: ...

        @scheduler_lock(f"own-{number}", provider=store)
        def own() -> None: ...

    await problems()
    assert store.calls["record"] == 1


async def test_an_application_factory_that_is_called_twice(problems: Any, tmp_path: Path) -> None:
    configure(sqlite(tmp_path), create_schema=True)

    def create_app() -> object:
        @scheduler_lock("nightly")
        def nightly() -> None: ...

        return nightly

    applications = [create_app() for _ in range(3)]
    assert await problems() == []
    reset()
    assert len(await problems()) == 1  # no provider
    del applications


def test_a_lock_notes_a_function_once() -> None:
    lock: Any = scheduler_lock("job")
    guarded = [lock(lambda: None) for _ in range(1000)]
    assert len(guarded[0].__shedlock__.functions) == 1
