"""The public helpers for tests."""

import copy
import inspect
import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    AsyncLockProvider,
    ConfigurationError,
    InMemoryLockProvider,
    LockProvider,
    LockSkipped,
)
from shedlock_py.testing import FakeClock, RecordingListener
from shedlock_py.testing.blocking import BlockingLockProvider
from tests.support.scripts import run_python


@pytest.mark.parametrize("minute", ["1m", 60, 60.0, timedelta(minutes=1)])
def test_a_clock_that_is_advanced(minute: Any) -> None:
    clock = FakeClock(start=5)
    assert clock() == clock() == 5
    clock.advance(minute)
    assert clock() == 65
    clock.advance("0s")
    clock.advance(0.000_001)
    assert clock() == 65.000_001
    assert "65.000001" in repr(clock)


def test_it_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        FakeClock().advance(-1)


def test_a_store_in_memory_that_is_made_with_a_clock_in_the_wrong_place() -> None:
    for make in (InMemoryLockProvider, AsyncInMemoryLockProvider):
        with pytest.raises(ConfigurationError, match="write clock="):
            make(FakeClock())  # type: ignore[arg-type]  # the mistake
        with pytest.raises(ConfigurationError, match="leave clock= out"):
            make(InMemoryLockProvider(), clock=FakeClock())
        clock = FakeClock()
        make(InMemoryLockProvider(clock=clock), clock=clock)


def test_i1_a_store_in_memory_has_no_copy_elsewhere() -> None:
    """A worker of a process pool would lock in its own memory."""
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="a copy in another process would not share its locks"):
            copied(InMemoryLockProvider())


def test_a_listener_that_remembers() -> None:
    recorded = RecordingListener()
    event = LockSkipped("job", "held", timedelta(0))
    recorded(event)
    assert recorded.events == recorded.of(LockSkipped) == [event]
    assert recorded.kinds() == ["LockSkipped"]


TESTS = """
from shedlock_py import ProviderNotConfigured, configure, current_lease, scheduler_lock
import asyncio, pytest

configure(default_lock_at_most_for="3m", listeners=[lambda event: pytest.fail("the application's own listener")])

@scheduler_lock("job")
def job():
    return current_lease().lock_at_most_for.total_seconds()

@scheduler_lock("job")
async def job_async():
    return 1

def test_in_memory(shedlock_provider, shedlock_clock, shedlock_events):
    assert job() == 180
    assert asyncio.run(job_async()) == 1
    assert shedlock_provider.record("job").fencing_token
    assert shedlock_events.skips == []

def test_each_test_has_a_store(shedlock_provider):
    assert shedlock_provider.records() == []

def test_events_alone_are_enough(shedlock_events):
    job()
    assert shedlock_events.kinds() == ["LockAcquired", "TaskFinished", "LockReleased"]

def test_without_a_fixture_nothing_is_changed():
    with pytest.raises(ProviderNotConfigured):
        job()
"""


@pytest.mark.slow("runs pytest")
def test_pytest_has_the_fixtures_where_the_package_is_installed(tmp_path: Path) -> None:
    (tmp_path / "test_application.py").write_text(TESTS)
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_application.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_the_facade_has_every_operation() -> None:
    def operations(kind: Any) -> dict[str, list[str]]:
        members: dict[str, Callable[..., Any]] = {
            name: member for name, member in vars(kind).items() if callable(member)
        }
        return {name: list(inspect.signature(member).parameters) for name, member in members.items() if name[0] != "_"}

    expected = operations(LockProvider)
    assert operations(AsyncLockProvider) == expected
    facade = operations(BlockingLockProvider)
    assert {name: facade[name] for name in expected} == expected
