"""hold and attempt: acquire, run, release, and the results for the caller that the contract does not show for each
store."""

import functools
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY, Mock

import pytest

from shedlock_py import (
    ConfigurationError,
    Event,
    Executed,
    InMemoryLockProvider,
    Lease,
    LeaseLost,
    LockAcquired,
    LockEvent,
    LockNotAcquired,
    LockReleased,
    LockRequest,
    LockSkipped,
    ProviderFailed,
    ProviderUnreachable,
    RunMissed,
    Skipped,
    TaskFinished,
    attempt,
    attempt_async,
    configure,
    hold,
    hold_async,
    scheduler_lock,
    try_hold,
    try_hold_async,
)
from shedlock_py.guard.skips import is_held_by_earlier_run
from shedlock_py.testing import FakeClock, RecordingListener
from shedlock_py.testing.contract.base import failing
from tests.support.signals import raised_by

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


class TestHold:
    def test_a_block_does_not_run_without_the_lease(
        self, provider: InMemoryLockProvider, recorded: RecordingListener
    ) -> None:
        provider.acquire(LockRequest("job", "5m", holder="other"))
        with (
            pytest.raises(LockNotAcquired, match="lock 'job' was not granted: another holder has it") as caught,
            hold("job"),
        ):
            pytest.fail("the block ran")
        assert caught.value.skipped == Skipped("job", "held")
        assert recorded.kinds() == ["LockSkipped"]

    async def test_nor_does_an_async_block(self, provider: InMemoryLockProvider) -> None:
        provider.acquire(LockRequest("job", "5m"))
        with pytest.raises(LockNotAcquired):
            async with hold_async("job"):
                pytest.fail("the block ran")

    def test_the_error_names_the_holder_if_the_record_was_read(self, provider: InMemoryLockProvider) -> None:
        provider.acquire(LockRequest("job", "5m", holder="other"))
        with pytest.raises(LockNotAcquired, match="'other' holds it"), hold(LockRequest("job", "5m", fire_time=NOON)):
            pytest.fail("the block ran")

    def test_the_error_says_that_the_fire_time_has_run(self, provider: InMemoryLockProvider) -> None:
        request = LockRequest("job", "5m", fire_time=NOON)
        with hold(request):
            pass
        with pytest.raises(LockNotAcquired, match="its fire time has run") as caught, hold(request):
            pytest.fail("the block ran")
        assert caught.value.skipped.reason == "already_ran"

    async def test_try_hold_gives_none_and_runs_the_block(self, provider: InMemoryLockProvider) -> None:
        with try_hold("job") as lease:
            assert lease is not None
        provider.acquire(LockRequest("job", "5m"))
        with try_hold("job") as lease:
            assert lease is None
        async with try_hold_async("job") as lease:
            assert lease is None

    def test_the_lease_is_that_of_the_request(self, provider: InMemoryLockProvider) -> None:
        with hold("job", lock_at_most_for="5m", lock_at_least_for="1m") as lease:
            assert lease is not None
            assert (lease.name, lease.lock_at_most_for) == ("job", timedelta(minutes=5))
            assert lease.lock_at_least_for == timedelta(minutes=1)
            assert lease.is_trusted()
        assert not lease.is_trusted()
        assert provider.records()[0].remaining == timedelta(minutes=1)

    def test_a_whole_request(self, provider: InMemoryLockProvider) -> None:
        with hold(LockRequest("job", "5m", holder="replica-1", fire_time=NOON)) as lease:
            assert lease is not None
            assert lease.holder == "replica-1"
        (record,) = provider.records()
        assert (record.holder, record.last_fire_time) == ("replica-1", NOON)

    def test_no_request_is_sent_before_the_block(self, provider: InMemoryLockProvider) -> None:
        hold("job")
        assert provider.records() == []

    def test_released_inside_by_hand(self, provider: InMemoryLockProvider, recorded: RecordingListener) -> None:
        with hold("job") as lease:
            assert lease
            assert provider.release(lease)
            successor = provider.acquire(LockRequest("job", "10m"))
        assert successor
        assert provider.release(successor)
        assert recorded.of(LeaseLost) == []


class TestAttempt:
    def test_a_task_that_ran_gives_its_value_and_its_lease(
        self, provider: InMemoryLockProvider, recorded: RecordingListener, clock: FakeClock
    ) -> None:
        def task() -> str:
            clock.advance("3s")
            return "value"

        result = attempt("job", task)
        assert isinstance(result, Executed)
        assert result.value == "value"
        assert result.lease.name == "job"
        assert recorded.kinds() == ["LockAcquired", "TaskFinished", "LockReleased"]
        assert {event.lock_name for event in recorded.of(LockEvent)} == {"job"}
        assert [getattr(event, "lease", None) for event in recorded.events] == [result.lease] * 3

    def test_a_fire_time_that_has_run(self, provider: InMemoryLockProvider, recorded: RecordingListener) -> None:
        request = LockRequest("job", "10m", fire_time=NOON)
        assert isinstance(attempt(request, lambda: None), Executed)
        assert attempt(request, pytest.fail) == Skipped("job", "already_ran")
        provider.acquire(LockRequest("job", "10m"))
        assert attempt(request, pytest.fail) == Skipped("job", "held")
        assert [event.reason for event in recorded.of(LockSkipped)] == ["already_ran", "held"]

    @pytest.mark.parametrize("value", [None, False, 0, "", ()])
    def test_a_falsy_value_is_a_value(self, provider: InMemoryLockProvider, value: object) -> None:
        result = attempt("job", lambda: value)
        assert isinstance(result, Executed)
        assert result.value is value

    def test_functions_whose_body_would_run_later_are_refused(
        self, provider: InMemoryLockProvider, recorded: RecordingListener
    ) -> None:
        async def coroutine() -> None: ...

        def generator() -> object:
            yield

        async def async_generator() -> object:
            yield

        for task, words in (
            (coroutine, "attempt_async or hold_async"),
            (generator, "generator function"),
            (async_generator, "generator function"),
        ):
            with pytest.raises(TypeError, match=words):
                attempt("job", task)
        assert provider.records() == []
        for hidden in (lambda: coroutine(), lambda: generator(), lambda: async_generator()):
            with pytest.raises(TypeError, match="has not run yet"):
                attempt("job", hidden)
        assert not provider.records()[0].is_held
        assert recorded.of(LeaseLost) == []

    def test_what_is_no_function_is_refused_before_anything_is_locked(self, provider: InMemoryLockProvider) -> None:
        async def coroutine() -> None: ...

        class Callable:
            async def __call__(self) -> None: ...

        given: Any
        for given, words in (
            (coroutine(), "not the coroutine of its call"),
            (None, r"not None: attempt\(name, task\), without \(\) after it"),
            (int, "int is a class"),
            (functools.partial(coroutine), "attempt_async or hold_async"),
            (Callable(), "attempt_async or hold_async"),
        ):
            with pytest.raises(TypeError, match=words):
                attempt("job", given)
        assert provider.records() == []

    def test_mocks_and_partials_are_run(self, provider: InMemoryLockProvider) -> None:
        task = Mock(return_value="done")
        assert attempt("job", task).ran
        assert attempt("job", functools.partial(task, 1)).ran
        assert [call.args for call in task.call_args_list] == [(), (1,)]

    def test_a_result_is_true_if_the_task_ran(self, provider: InMemoryLockProvider) -> None:
        ran = attempt("job", lambda: None)
        assert ran
        assert ran.ran
        provider.acquire(LockRequest("job", "5m"))
        skipped = attempt("job", lambda: None)
        assert not skipped
        assert not skipped.ran

    @pytest.mark.anyio
    async def test_what_is_done_when_it_is_used_is_refused(self, provider: InMemoryLockProvider) -> None:
        """Such as aiohttp's requests, a Tortoise query, and a job with ``@contextmanager``."""

        class Request:
            def __await__(self) -> Generator[None, None, str]:
                yield
                return "sent"

        @contextmanager
        def block() -> Iterator[None]:
            yield

        @asynccontextmanager
        async def async_block() -> AsyncIterator[None]:
            yield

        given: Any
        for given in (lambda: Request(), block, async_block):
            with pytest.raises(TypeError, match="that has not run yet"):
                attempt("job", given)
            with pytest.raises(TypeError, match="that has not run yet"):
                scheduler_lock("job")(lambda given=given: given())()

        client = Request()

        async def returns_one() -> object:
            return client

        assert await attempt_async("job", lambda: Request()) == Executed("sent", ANY)
        assert await attempt_async("job", returns_one) == Executed(client, ANY), "as one of redis.asyncio"
        assert not provider.records()[0].is_held

    @pytest.mark.parametrize("name", ["", "x" * 65, "a\nb", 7, None])
    def test_a_bad_name_is_refused_without_a_request(self, provider: InMemoryLockProvider, name: object) -> None:
        with pytest.raises(ConfigurationError, match="lock name"):
            attempt(name, pytest.fail)  # type: ignore[arg-type]  # on purpose
        assert provider.records() == []


class TestI5FailClosed:
    def test_i5_a_failing_acquire(self, provider: InMemoryLockProvider, recorded: RecordingListener) -> None:
        with pytest.raises(ProviderUnreachable, match="no reply") as caught:
            attempt("job", pytest.fail, provider=failing(provider, "acquire"))
        assert recorded.events == [ProviderFailed("job", "acquire", caught.value)]


class TestI8TheResultIsSacred:
    @pytest.mark.parametrize("error", [RuntimeError("a bug in the provider"), SystemExit(1)], ids=repr)
    def test_i8_a_release_that_raises_anything(self, provider: InMemoryLockProvider, error: BaseException) -> None:
        class Broken(InMemoryLockProvider):
            def release(self, lease: object) -> bool:
                raise error

        assert isinstance(attempt("job", lambda: "value", provider=Broken()), Executed)

    @pytest.mark.parametrize("kind", [SystemExit, TimeoutError])
    def test_i8_a_signal_during_the_release_ends_the_process(
        self, provider: InMemoryLockProvider, kind: type[BaseException]
    ) -> None:
        class Interrupted(InMemoryLockProvider):
            def release(self, lease: Lease) -> bool:
                signal.raise_signal(signal.SIGTERM)
                return True

        with raised_by(signal.SIGTERM, kind), pytest.raises(kind):
            attempt("job", lambda: "value", provider=Interrupted())

    def test_i8_an_interruption_of_the_first_listener(self, provider: InMemoryLockProvider) -> None:
        recorded = RecordingListener()

        def interrupted(event: Event) -> None:
            if isinstance(event, LockAcquired):
                raise KeyboardInterrupt

        with configure(provider=provider, listeners=[recorded, interrupted]), pytest.raises(KeyboardInterrupt):
            attempt("job", lambda: None, lock_at_most_for="1m")
        assert [type(event) for event in recorded.events] == [LockAcquired, TaskFinished, LockReleased]

    @pytest.mark.parametrize(("seconds", "lost"), [("9.95s", ["LeaseLost"]), ("9.8s", [])])
    def test_i8_an_overrun_into_the_margin_is_reported_too(
        self,
        provider: InMemoryLockProvider,
        recorded: RecordingListener,
        clock: FakeClock,
        seconds: str,
        lost: list[str],
    ) -> None:
        attempt("job", lambda: clock.advance(seconds), lock_at_most_for="10s")
        assert recorded.kinds() == ["LockAcquired", "TaskFinished", *lost, "LockReleased"]


def test_async_code_without_an_event_loop_of_asyncio_is_refused() -> None:
    """For example, under trio."""
    entering = hold_async("job", lock_at_most_for="1m", provider=InMemoryLockProvider()).__aenter__()
    with pytest.raises(ConfigurationError, match=r"no event loop of asyncio is running; trio is"):
        entering.send(None)


class TestHeldByAnEarlierRun:
    """A due run that an earlier run keeps from beginning is a ``RunMissed``. The contract shows it on each store."""

    @pytest.mark.parametrize(
        ("held_for", "wanted", "is_told"),
        [
            pytest.param(NOON - timedelta(hours=1), NOON, True, id="earlier"),
            pytest.param(NOON, NOON, False, id="same"),
            pytest.param(NOON + timedelta(hours=1), NOON, False, id="later"),
            pytest.param(None, NOON, False, id="plain holder"),
            pytest.param(NOON, None, False, id="plain request"),
        ],
    )
    def test_i14_it_is_told(
        self,
        provider: InMemoryLockProvider,
        recorded: RecordingListener,
        caplog: pytest.LogCaptureFixture,
        held_for: datetime | None,
        wanted: datetime | None,
        is_told: bool,
    ) -> None:
        provider.acquire(LockRequest("job", "5m", holder="other", fire_time=held_for))
        assert attempt(LockRequest("job", "5m", fire_time=wanted), pytest.fail) == Skipped("job", ANY)
        assert [(event.fire_time, event.reason) for event in recorded.of(RunMissed)] == [(wanted, "held")] * is_told
        text = "the run of 2024-05-01T12:00:00+00:00 did not begin: an earlier run had the lock"
        assert (text in caplog.text) == is_told

    def test_i14_a_minimum_hold_and_a_pause_are_no_runs(
        self, provider: InMemoryLockProvider, recorded: RecordingListener
    ) -> None:
        attempt(LockRequest("job", "5m", "4m", fire_time=NOON - timedelta(hours=1)), lambda: None)
        assert attempt(LockRequest("job", "5m", fire_time=NOON), pytest.fail) == Skipped("job", "held")
        provider.pause("job", "5m")
        assert attempt(LockRequest("job", "5m", fire_time=NOON), pytest.fail) == Skipped("job", "held")
        assert recorded.of(RunMissed) == []

    def test_a_holder_in_java_may_run_this_fire_time(self, provider: InMemoryLockProvider) -> None:
        """Its record has no claim id, and still the fire time of the last run in Python."""
        provider.acquire(LockRequest("job", "5m", holder="java-host", fire_time=NOON - timedelta(hours=1)))
        record = provider.record("job")
        assert record is not None
        request = LockRequest("job", "5m", fire_time=NOON)
        assert is_held_by_earlier_run(request, record)
        assert not is_held_by_earlier_run(request, replace(record, locked_by="java-host"))
