"""The contract suite on the JSON-file store."""

import fcntl
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from examples.providers.json_file import AsyncJsonFileLockProvider, JsonFileLockProvider
from shedlock_py import AsyncLockProvider, LockProvider
from shedlock_py.testing.contract import (
    AsyncLockProviderContract,
    BlockingLockProvider,
    EventLoopContract,
    ForkContract,
    LockProviderContract,
    LockProviderFactory,
    ProcessContract,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "locks.json"
    JsonFileLockProvider(path).create_schema()
    return path


class TestJsonFile(LockProviderContract, ProcessContract, ForkContract):
    @pytest.fixture
    def make_provider(self, path: Path) -> LockProviderFactory:
        return lambda: JsonFileLockProvider(path)

    @pytest.fixture
    def process_factory(self, path: Path) -> Any:
        return partial(JsonFileLockProvider, path)  # can be pickled, for processes that are not forked

    @pytest.fixture
    def failing_provider(self, path: Path) -> Iterator[LockProvider]:
        with open(f"{path}.lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # as a process does that was stopped in the middle of an operation
            yield JsonFileLockProvider(path, timeout="50ms")


class TestAsyncJsonFile(AsyncLockProviderContract, EventLoopContract):
    @pytest.fixture
    def make_async_provider(self, path: Path) -> Any:
        return lambda: AsyncJsonFileLockProvider(path)

    @pytest.fixture
    def make_loop_provider(self, make_async_provider: Any) -> Any:
        return make_async_provider

    @pytest.fixture
    def failing_provider(self, path: Path) -> Iterator[LockProvider]:
        def make() -> AsyncLockProvider:
            return AsyncJsonFileLockProvider(path, timeout="50ms")

        with open(f"{path}.lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with BlockingLockProvider(make) as failing:
                yield failing
