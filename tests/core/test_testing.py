"""The public helpers for tests."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from shedlock_py import AsyncLockProvider, LockProvider, LockSkipped
from shedlock_py.testing import FakeClock, RecordingListener
from shedlock_py.testing.blocking import BlockingLockProvider


@pytest.mark.parametrize("minute", ["1m", 60, 60.0, timedelta(minutes=1)])
def test_a_clock_that_is_advanced(minute: Any) -> None:
    clock = FakeClock(start=5)
    assert clock() == clock() == 5
    clock.advance(minute)
    assert clock() == 65
    clock.advance(0.000_001)
    assert clock() == 65.000_001
    assert "65.000001" in repr(clock)


def test_it_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        FakeClock().advance(-1)


def test_a_listener_that_remembers() -> None:
    recorded = RecordingListener()
    event = LockSkipped("job", "held", timedelta(0))
    recorded(event)
    assert recorded.events == recorded.of(LockSkipped) == [event]
    assert recorded.kinds() == ["LockSkipped"]


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
