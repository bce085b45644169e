"""``once_per=`` and ``fire_time=``: one run for each slot, or for each moment that the caller gives."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    LockNotAcquired,
    LockRequest,
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
from shedlock_py.model.slots import EPOCH, current_slot, slot_of

HOUR = timedelta(hours=1)
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
HAS_RUN = Skipped("job", "already_ran")
PERIODS = st.timedeltas(timedelta(milliseconds=1), timedelta(days=3653))
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


def lead(period: timedelta) -> timedelta:
    return min(timedelta(seconds=30), period / 2)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("now", "period", "expected"),
    [
        # an hour's slot begins half a minute before the hour
        ("2026-03-01T11:59:29.999+00:00", timedelta(hours=1), "2026-03-01T11:00:00+00:00"),
        ("2026-03-01T11:59:30+00:00", timedelta(hours=1), "2026-03-01T12:00:00+00:00"),
        # a short slot begins half a period before
        ("2026-03-01T12:00:04.999+00:00", timedelta(seconds=10), "2026-03-01T12:00:00+00:00"),
        ("2026-03-01T12:00:05+00:00", timedelta(seconds=10), "2026-03-01T12:00:10+00:00"),
        # days are UTC days, whatever the host's zone is
        ("2026-03-02T00:30:00+01:00", timedelta(days=1), "2026-03-01T00:00:00+00:00"),
        # weeks begin on Thursdays, as 1970 did
        ("2026-03-04T12:00:00+00:00", timedelta(days=7), "2026-02-26T00:00:00+00:00"),
        # before 1970
        ("1969-12-31T23:00:00+00:00", timedelta(days=1), "1969-12-31T00:00:00+00:00"),
    ],
)
def test_the_current_slot_a_moment(now: str, period: timedelta, expected: str) -> None:
    assert current_slot(at(now), period) == at(expected)


@given(PERIODS, st.integers(0, 10**6), st.floats(-1, 0.99), st.floats(-1, 0.99))
def test_clocks_around_a_full_multiple_agree(period: timedelta, number: int, one: float, other: float) -> None:
    multiple = EPOCH + period * (number % (timedelta(days=36500) // period))
    before, later = (multiple + lead(period) * off for off in (one, other))
    assert current_slot(before, period) == current_slot(later, period) == multiple


@given(PERIODS, MOMENTS)
def test_periods_follow_each_other(period: timedelta, now: datetime) -> None:
    this = current_slot(now, period)
    assert this - lead(period) <= now < this + period - lead(period)
    assert current_slot(now + period, period) == this + period
    assert this <= current_slot(now + period / 3, period) <= this + period


@given(PERIODS, MOMENTS)
def test_a_moment_is_in_the_slot_that_begins_at_or_before_it(period: timedelta, moment: datetime) -> None:
    slot = slot_of(moment, period)
    assert slot <= moment < slot + period
    assert (slot - EPOCH) % period == timedelta(0)


@pytest.fixture(autouse=True)
def store() -> Iterator[InMemoryLockProvider]:
    provider = InMemoryLockProvider()
    with configure(provider=provider, default_lock_at_most_for="1m"):
        yield provider


def newest(store: InMemoryLockProvider) -> datetime | None:
    (record,) = store.records()
    return record.last_fire_time


def test_i11_a_function_runs_once_per_slot(store: InMemoryLockProvider) -> None:
    """This holds even if it ends at once, when the lock is free again."""
    ran: list[str] = []
    job = scheduler_lock("job", once_per="3000d")(ran.append)
    job("first")
    job("second")
    assert ran == ["first"]
    assert job.attempt("third") == HAS_RUN
    assert newest(store) == current_slot(datetime.now(UTC), timedelta(days=3000))


async def test_i11_every_guard_has_slots(store: InMemoryLockProvider) -> None:
    once: Any = {"once_per": "3000d"}

    async def task() -> None: ...

    with hold("job", **once):
        pass
    with pytest.raises(LockNotAcquired, match="its fire time has run"), hold("job", **once):
        pytest.fail("the block ran")
    with pytest.raises(LockNotAcquired):
        async with hold_async("job", **once):
            pytest.fail("the block ran")
    with try_hold("job", **once) as lease:
        assert lease is None
    async with try_hold_async("job", **once) as lease:
        assert lease is None
    assert attempt("job", lambda: None, **once) == HAS_RUN
    assert await attempt_async("job", task, **once) == HAS_RUN
    assert attempt("job", lambda: None), "without a slot it runs"


def test_i11_a_function_of_the_arguments_gives_the_fire_time(store: InMemoryLockProvider) -> None:
    @scheduler_lock("job", fire_time=lambda sent_at: sent_at)
    def job(sent_at: datetime) -> str:
        return "ran"

    assert [job(NOON), job(NOON), job(NOON + HOUR), job(NOON)] == ["ran", None, "ran", None]


async def test_i11_methods_and_async_functions_have_fire_times(store: InMemoryLockProvider) -> None:
    class Mail:
        @scheduler_lock("job", fire_time=lambda mail, sent_at: sent_at)
        def send(self, sent_at: datetime) -> str:
            return "ran"

        @scheduler_lock("job", fire_time=lambda mail, sent_at: sent_at)
        async def send_async(self, sent_at: datetime) -> str:
            return "ran"

    assert Mail().send(NOON) == "ran"
    assert await Mail().send_async(NOON) is None
    assert await Mail().send_async(sent_at=NOON + HOUR) == "ran"


def test_i11_with_once_per_a_fire_time_is_rounded_down_to_its_slot(store: InMemoryLockProvider) -> None:
    with hold("job", fire_time=NOON + HOUR / 3, once_per="1h"):
        pass
    assert newest(store) == NOON
    assert attempt("job", lambda: None, fire_time=NOON + HOUR * 0.9, once_per="1h") == HAS_RUN
    assert attempt("job", lambda: None, fire_time=NOON + HOUR, once_per="1h")


def test_the_minimum_hold_is_independent(store: InMemoryLockProvider) -> None:
    assert attempt("job", lambda: None, lock_at_least_for="30s", fire_time=NOON)
    assert attempt("job", lambda: None, fire_time=NOON + HOUR) == Skipped("job", "held")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"once_per": "often"}, "once_per='often' is not a duration"),
        ({"once_per": 0}, "once_per=0 is zero"),
        ({"fire_time": datetime(2024, 5, 1)}, "fire_time must be an aware datetime"),
        ({"fire_time": "noon"}, "fire_time must be an aware datetime"),
        ({"fire_time": lambda: NOON}, "fire_time must be an aware datetime"),
    ],
)
def test_what_is_no_slot_or_moment_is_refused(options: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        hold("job", **options)


def test_a_decorator_needs_a_function_that_gives_a_moment() -> None:
    wrong: Any = NOON
    with pytest.raises(ConfigurationError, match="each call has its own"):
        scheduler_lock("job", fire_time=wrong)
    nothing: Any = print
    job = scheduler_lock("job", fire_time=nothing)(lambda sent_at: pytest.fail("the task ran"))
    with pytest.raises(ConfigurationError, match="the result of the function fire_time= must be an aware datetime"):
        job(NOON)


def test_a_request_that_has_a_fire_time_takes_no_other() -> None:
    with pytest.raises(ConfigurationError, match="has a fire time; give no other"):
        hold(LockRequest("job", "1m", fire_time=NOON), once_per="1h")
