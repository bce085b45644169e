"""``expected_every``: a run says when the next run is due, for a monitor in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    ConfigurationError,
    InMemoryLockProvider,
    LockRequest,
    attempt,
    attempt_async,
    hold,
    hold_async,
    scheduler_lock,
)
from shedlock_py.model.overdue import punctuality
from shedlock_py.testing import FakeClock

HOUR = timedelta(hours=1)


def by_decorator(provider: Any, **options: Any) -> None:
    scheduler_lock("job", "1m", provider=provider, **options)(lambda: None)()


def by_hold(provider: Any, **options: Any) -> None:
    with hold("job", lock_at_most_for="1m", provider=provider, **options):
        pass


def by_attempt(provider: Any, **options: Any) -> None:
    attempt("job", lambda: None, lock_at_most_for="1m", provider=provider, **options)


def by_async_decorator(provider: Any, **options: Any) -> None:
    async def task() -> None: ...

    asyncio.run(scheduler_lock("job", "1m", provider=in_async_code(provider), **options)(task)())


def by_hold_async(provider: Any, **options: Any) -> None:
    async def task() -> None:
        async with hold_async("job", lock_at_most_for="1m", provider=in_async_code(provider), **options):
            pass

    asyncio.run(task())


def by_attempt_async(provider: Any, **options: Any) -> None:
    async def task() -> None: ...

    asyncio.run(attempt_async("job", task, lock_at_most_for="1m", provider=in_async_code(provider), **options))


def in_async_code(provider: InMemoryLockProvider) -> AsyncInMemoryLockProvider:
    return AsyncInMemoryLockProvider(shared_with=provider, history=5)


GUARDS = [by_decorator, by_hold, by_attempt, by_async_decorator, by_hold_async, by_attempt_async]


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("every", ["1h", "PT1H", 3600, HOUR])
def test_the_run_says_when_the_next_one_is_due(guard: Callable[..., None], every: Any) -> None:
    provider = InMemoryLockProvider(history=5)
    before = datetime.now(UTC)
    guard(provider, expected_every=every)
    after = datetime.now(UTC)
    [run] = provider.runs("job")
    assert run.next_fire_time is not None
    assert before + HOUR <= run.next_fire_time <= after + HOUR
    guard(provider)
    assert provider.runs("job")[0].next_fire_time is None


@pytest.mark.parametrize("every", [0, "0s", -1, "10", "often", True, float("nan"), "20000d", object()])
def test_what_cannot_work_is_refused(every: Any) -> None:
    for guard in (
        lambda: scheduler_lock("job", expected_every=every),
        lambda: hold("job", expected_every=every),
        lambda: hold_async("job", expected_every=every),
        lambda: attempt("job", lambda: None, expected_every=every),
    ):
        with pytest.raises(ConfigurationError, match="expected_every"):
            guard()


def test_a_single_run_is_enough_to_find_that_the_job_is_overdue() -> None:
    """Any process can tell, by the store's clock. A cadence would need four runs."""
    clock = FakeClock()
    provider = InMemoryLockProvider(clock=clock, history=5)
    attempt("job", lambda: None, lock_at_most_for="1m", provider=provider, expected_every="1h")
    for passed, state in (("1h", "on_time"), ("2m", "overdue")):
        clock.advance(passed)
        record = provider.record("job")
        assert record is not None
        job = punctuality(record, provider.runs("job"))
        assert (job.state, job.basis) == (state, "next_fire_time")


def test_it_goes_before_what_the_request_says() -> None:
    """The request has the scheduler's value; the user knows better."""
    provider = InMemoryLockProvider(history=5)
    request = LockRequest("job", "1m", next_fire_time=datetime(2020, 1, 1, tzinfo=UTC))
    attempt(request, lambda: None, provider=provider)
    attempt(request, lambda: None, provider=provider, expected_every="1h")
    new, old = provider.runs("job")
    assert old.next_fire_time == request.next_fire_time
    assert new.next_fire_time is not None
    assert new.next_fire_time > datetime.now(UTC)


def test_without_history_it_changes_nothing() -> None:
    provider = InMemoryLockProvider()
    before = attempt("job", lambda: provider.record("job"), lock_at_most_for="1m", provider=provider)
    after = attempt(
        "job", lambda: provider.record("job"), lock_at_most_for="1m", provider=provider, expected_every="1h"
    )
    for result in (before, after):
        record: Any = result.value  # type: ignore[union-attr]  # nothing else holds the lock
        assert record.lock_until - record.locked_at == timedelta(minutes=1)
        assert record.last_fire_time is None
