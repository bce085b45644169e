"""An error of the store is either raised or logged. Listeners get it in both cases."""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import (
    InMemoryLockProvider,
    ProviderError,
    ProviderFailed,
    ProviderUnreachable,
    attempt,
    attempt_async,
    extend_lock,
    hold,
    hold_async,
    provider_from_url,
    scheduler_lock,
    try_hold,
)
from shedlock_py.testing import RecordingListener
from shedlock_py.testing.contract.base import failing
from tests.support.logs import records_of


def with_hold(provider: Any) -> None:
    with hold("job", provider=provider):
        pytest.fail("the block ran")


def with_try_hold(provider: Any) -> None:
    with try_hold("job", provider=provider):
        pytest.fail("the block ran")


def with_hold_async(provider: Any) -> None:
    async def main() -> None:
        async with hold_async("job", provider=provider):
            pytest.fail("the block ran")

    asyncio.run(main())


def with_attempt(provider: Any) -> None:
    attempt("job", pytest.fail, provider=provider)


def with_attempt_async(provider: Any) -> None:
    async def never() -> None:
        pytest.fail("the task ran")

    asyncio.run(attempt_async("job", never, provider=provider))


def decorated(provider: Any) -> None:
    scheduler_lock("job", provider=provider)(lambda: None)()


def decorated_attempt(provider: Any) -> None:
    scheduler_lock("job", provider=provider)(lambda: None).attempt()


GUARDS = [with_hold, with_try_hold, with_hold_async, with_attempt, with_attempt_async, decorated, decorated_attempt]


@pytest.mark.parametrize("guard", GUARDS)
def test_a_failing_acquire_is_raised_and_not_logged(
    guard: Callable[[Any], None],
    provider: InMemoryLockProvider,
    recorded: RecordingListener,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ProviderUnreachable) as caught:
        guard(failing(provider, "acquire"))
    assert records_of(caplog, level=logging.INFO) == []
    assert [record.levelno for record in records_of(caplog, "acquire failed")] == [logging.DEBUG]
    [event] = recorded.of(ProviderFailed)
    assert event.error is caught.value


def test_a_failing_extension_that_the_task_asked_for_is_raised_and_not_logged(
    provider: InMemoryLockProvider, recorded: RecordingListener, caplog: pytest.LogCaptureFixture
) -> None:
    with hold("job", provider=failing(provider, "extend")), pytest.raises(ProviderUnreachable):
        extend_lock("1h")
    assert records_of(caplog, level=logging.INFO) == []
    assert [event.operation for event in recorded.of(ProviderFailed)] == ["extend"]


def test_a_failing_release_is_logged_and_not_raised(
    provider: InMemoryLockProvider, recorded: RecordingListener, caplog: pytest.LogCaptureFixture
) -> None:
    with hold("job", provider=failing(provider, "release")):
        pass
    assert [record.levelno for record in records_of(caplog, "release failed")] == [logging.ERROR]
    assert [event.operation for event in recorded.of(ProviderFailed)] == ["release"]


def test_a_missing_table_is_one_traceback_of_five_frames(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    provider: Any = provider_from_url(f"sqlite:///{tmp_path}/locks.db")
    with pytest.raises(ProviderError, match="create the table") as caught:
        decorated(provider)
    provider.close()
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("Traceback") == 1
    assert "sqlite3" not in text
    assert "[SQL:" not in text
    frames = [Path(frame.filename).name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames == [
        Path(__file__).name,
        Path(__file__).name,
        "decorator.py",
        "block.py",
        "program_provider.py",
        "program_provider.py",
    ]


def test_pytest_shows_only_the_code_of_the_user(provider: InMemoryLockProvider) -> None:
    with pytest.raises(ProviderUnreachable) as caught:
        decorated(failing(provider, "acquire"))
    shown = {Path(str(entry.path)).name for entry in caught.traceback.filter(caught)}
    assert not shown & {"decorator.py", "block.py", "program_provider.py", "operation.py", "program.py"}
    assert Path(__file__).name in shown
    try:
        raise RuntimeError
    except RuntimeError:
        hides = sys.modules["shedlock_py.guard.block"].__dict__["__tracebackhide__"]
        assert not hides(pytest.ExceptionInfo.from_current()), "an error of the task itself shows all frames"
