"""The guard around a task, on a real store."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from shedlock_py import (
    Event,
    Executed,
    InMemoryLockProvider,
    LeaseLost,
    LockAcquired,
    LockProvider,
    LockRequest,
    LockSkipped,
    ProviderFailed,
    ProviderUnreachable,
    RunMissed,
    Skipped,
    attempt,
    configure,
    current_lease,
    extend_lock,
    hold,
    hold_async,
)
from shedlock_py.testing.contract.base import (
    LONG,
    SHORT,
    ContractBase,
    acquired,
    eventually,
    failing,
    granted_soon,
    record_of,
)
from shedlock_py.testing.doubles import RecordingListener

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


class GuardContract(ContractBase):
    def test_a_guard_runs_its_task_and_releases(
        self, provider: LockProvider, name: str, events: RecordingListener
    ) -> None:
        result = attempt(name, lambda: current_lease(), provider=provider)
        assert isinstance(result, Executed)
        assert result.value is result.lease
        assert events.kinds() == ["LockAcquired", "TaskFinished", "LockReleased"]
        acquired(provider, LockRequest(name, LONG))

    def test_a_guard_skips_its_task_when_the_lock_is_held(
        self, provider: LockProvider, other: LockProvider, name: str, events: RecordingListener
    ) -> None:
        acquired(other, LockRequest(name, LONG))
        assert attempt(name, pytest.fail, provider=provider) == Skipped(name, "held")
        assert events.kinds() == ["LockSkipped"]

    def test_i14_a_fire_time_that_an_earlier_run_keeps_from_beginning_is_told(
        self, provider: LockProvider, other: LockProvider, name: str, events: RecordingListener
    ) -> None:
        acquired(other, LockRequest(name, LONG, fire_time=NOON))
        for late in (timedelta(0), timedelta(hours=1)):
            request = LockRequest(name, LONG, fire_time=NOON + late)
            assert attempt(request, pytest.fail, provider=provider) == Skipped(name, "held")
        assert [(event.fire_time, event.reason) for event in events.of(RunMissed)] == [
            (NOON + timedelta(hours=1), "held")
        ]
        assert record_of(other, name).holder in events.of(RunMissed)[0].details

    def test_nested_guards_of_one_name_share_the_lease(
        self, provider: LockProvider, name: str, events: RecordingListener
    ) -> None:
        with hold(name, provider=provider) as lease:
            with hold(name, provider=provider) as inner:
                assert inner is lease
            assert record_of(provider, name).is_held
            with hold(name, provider=InMemoryLockProvider()) as elsewhere:
                assert elsewhere is not lease
        assert not record_of(provider, name).is_held
        assert len(events.of(LockAcquired)) == 2

    def test_i4_minimum_hold_survives_a_failing_task(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        with pytest.raises(ZeroDivisionError):
            attempt(name, lambda: 1 / 0, lock_at_most_for="2m", lock_at_least_for=LONG, provider=provider)
        assert other.acquire(LockRequest(name, LONG)) is None
        assert record_of(other, name).remaining <= timedelta(seconds=60) + self.kept_longer

    def test_i5_no_answer_is_an_error_and_the_task_does_not_run(
        self, failing_provider: LockProvider, name: str, events: RecordingListener
    ) -> None:
        with pytest.raises(ProviderUnreachable) as caught:
            attempt(name, pytest.fail, provider=failing_provider)
        assert (caught.value.operation, caught.value.lock_name) == ("acquire", name)
        assert isinstance(caught.value.__cause__, Exception)
        assert events.kinds() == ["ProviderFailed"]
        request = LockRequest(name, LONG, fire_time=NOON)
        with pytest.raises(ProviderUnreachable):
            attempt(request, pytest.fail, provider=failing_provider)
        assert events.of(LockSkipped) == []

    def test_i5_each_operation_fails_loudly(self, failing_provider: LockProvider, name: str) -> None:
        with pytest.raises(ProviderUnreachable):
            failing_provider.acquire(LockRequest(name, LONG))
        with pytest.raises(ProviderUnreachable):
            failing_provider.record(name)

    def test_i5_a_skip_stays_a_skip_when_its_reason_cannot_be_read(
        self, provider: LockProvider, name: str, events: RecordingListener
    ) -> None:
        acquired(provider, LockRequest(name, LONG))
        request = LockRequest(name, LONG, fire_time=NOON)
        assert attempt(request, pytest.fail, provider=failing(provider, "record")) == Skipped(name, "held")
        assert [event.operation for event in events.of(ProviderFailed)] == ["record"]

    def test_i8_a_failing_release_keeps_value_and_exception(
        self, provider: LockProvider, name: str, events: RecordingListener
    ) -> None:
        faulty = failing(provider, "release")
        result = attempt(f"{name}/1", lambda: "value", provider=faulty)
        assert isinstance(result, Executed)
        assert result.value == "value"
        with pytest.raises(ZeroDivisionError):
            attempt(f"{name}/2", lambda: 1 / 0, provider=faulty)
        assert [event.operation for event in events.of(ProviderFailed)] == ["release", "release"]

    def test_i8_a_lease_taken_over_keeps_value_and_exception(
        self, provider: LockProvider, other: LockProvider, name: str, events: RecordingListener
    ) -> None:
        def task(fail: bool) -> str:
            other.take_over(LockRequest(name, LONG))
            return str(1 / (not fail))

        result = attempt(name, lambda: task(False), provider=provider)
        assert isinstance(result, Executed)
        other.force_release(name)
        with pytest.raises(ZeroDivisionError):
            attempt(name, lambda: task(True), provider=provider)
        assert [event.reason for event in events.of(LeaseLost)] == ["revoked", "revoked"]
        assert record_of(other, name).is_held

    def test_i8_an_overrun_keeps_the_value_and_is_told(
        self, provider: LockProvider, other: LockProvider, name: str, events: RecordingListener
    ) -> None:
        def task() -> str:
            lease = current_lease()
            assert lease is not None
            provider.extend(lease, SHORT)
            granted_soon(other, LockRequest(name, LONG))
            assert current_lease() is None
            return "value"

        result = attempt(name, task, provider=provider)
        assert isinstance(result, Executed)
        assert result.value == "value"
        assert [event.reason for event in events.of(LeaseLost)] == ["overrun"]
        assert record_of(other, name).is_held

    def test_i8_a_raising_listener_changes_nothing(self, provider: LockProvider, name: str) -> None:
        def broken(event: Event) -> None:
            raise RuntimeError("broken listener")

        with configure(listeners=[broken]):
            result = attempt(name, lambda: "value", provider=provider)
            assert isinstance(result, Executed)
            assert result.value == "value"
            assert not record_of(provider, name).is_held
            with pytest.raises(ZeroDivisionError):
                attempt(name, lambda: 1 / 0, provider=provider)

    def test_i9_a_lease_holds_nothing_but_its_record(self, provider: LockProvider, name: str) -> None:
        """Hold more leases than any pool has connections, and use each operation meanwhile."""
        leases = [acquired(provider, LockRequest(f"{name}/{number}", LONG)) for number in range(25)]
        with hold(name, provider=provider) as lease:
            assert lease is not None
            assert provider.acquire(LockRequest(name, LONG)) is None
            assert isinstance(attempt(f"{name}/inner", lambda: "value", provider=provider), Executed)
            assert len(provider.records(f"{name}/")) == 26
            extend_lock("2m")
        assert all(provider.release(lease) for lease in leases)

    def test_i10_the_local_wall_clock_decides_nothing(
        self, provider: LockProvider, other: LockProvider, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acquired(provider, LockRequest(name, LONG))
        free = provider.take_over(LockRequest(f"{name}/free", LONG))
        provider.release(free)
        true_now = record_of(provider, name).read_at
        for skew in (timedelta(hours=-30), timedelta(hours=30)):
            with monkeypatch.context() as patch:
                skew_wall_clock(patch, skew, provider)
                assert other.acquire(LockRequest(name, LONG)) is None
                assert record_of(provider, name).is_held
                lease = acquired(provider, LockRequest(f"{name}/free", LONG))
                record = record_of(provider, lease.name)
                assert abs(record.locked_at - true_now) < timedelta(hours=1)
                assert timedelta(seconds=30) < record.remaining <= timedelta(seconds=60) + self.kept_longer
                assert provider.extend(lease, "2m") is lease
                assert provider.force_release(name) is True
                assert provider.prune("2h") == 0 or provider.record(name) is not None
                acquired(provider, LockRequest(name, LONG))
                assert provider.release(lease) is True

    def test_i12_a_cancelled_async_guard_leaves_nothing_behind(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        """The provider works in a thread; the async task is cancelled at twenty moments."""

        async def cancelled_after(steps: int, lock: str) -> None:
            async def guarded() -> None:
                async with hold_async(lock, lock_at_most_for="1h", provider=provider):
                    await asyncio.sleep(0.001)

            task = asyncio.create_task(guarded())
            for step in range(steps):
                await asyncio.sleep(0.0001 * step)
            task.cancel()
            await asyncio.wait([task])

        async def many() -> None:
            await asyncio.gather(*(cancelled_after(steps, f"{name}/{steps}") for steps in range(20)))

        asyncio.run(many())
        for steps in range(20):
            eventually(lambda: other.acquire(LockRequest(f"{name}/{steps}", LONG)), "a cancelled guard's end")

    def test_extend_lock_extends_the_current_lease(
        self, provider: LockProvider, name: str, events: RecordingListener
    ) -> None:
        with hold(name, lock_at_most_for=LONG, provider=provider) as lease:
            assert extend_lock("1h") is lease
            assert record_of(provider, name).remaining > timedelta(minutes=50)
        assert events.kinds() == ["LockAcquired", "LockExtended", "TaskFinished", "LockReleased"]

    def test_a_lease_that_ended_is_not_current(self, provider: LockProvider, name: str) -> None:
        with hold(name, lock_at_most_for=LONG, provider=provider) as lease:
            assert lease is not None
            provider.extend(lease, SHORT)
            eventually(lambda: not lease.is_trusted())
            assert current_lease() is None
            eventually(lambda: not record_of(provider, name).is_held)
            with hold(name, lock_at_most_for=LONG, provider=provider) as again:
                assert again is not None
                assert again is not lease


def skew_wall_clock(patch: pytest.MonkeyPatch, skew: timedelta, provider: LockProvider) -> None:
    """Shift the wall clock of this process, as far as the provider's Python code can see."""
    true_time, true_time_ns, true_datetime = time.time, time.time_ns, datetime

    class IsDatetime(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, true_datetime)

    class SkewedDatetime(datetime, metaclass=IsDatetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return true_datetime.now(tz) + skew

        @classmethod
        def utcnow(cls) -> Any:
            return true_datetime.now(UTC).replace(tzinfo=None) + skew

    patch.setattr(time, "time", lambda: true_time() + skew.total_seconds())
    patch.setattr(time, "time_ns", lambda: true_time_ns() + skew // timedelta(microseconds=1) * 1000)
    packages = {"shedlock_py", type(getattr(provider, "async_provider", provider)).__module__.partition(".")[0]}
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] in packages and not module_name.startswith("shedlock_py.testing"):
            for attribute, value in list(vars(module).items()):
                if value is true_datetime:
                    patch.setattr(module, attribute, SkewedDatetime)
                elif value is true_time:
                    patch.setattr(module, attribute, time.time)
