"""Pause and resume: an optional part. Every provider that is made with the kit has it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from shedlock_py import (
    ConfigurationError,
    Lease,
    LockRecord,
    LockRequest,
    LockSkipped,
    ProviderError,
    ProviderUnreachable,
    hold,
    try_hold,
)
from shedlock_py.model.record import Pause
from shedlock_py.testing.contract.base import (
    LONG,
    LONGEST_WAIT,
    SHORT,
    AsyncContractBase,
    ContractBase,
    acquired,
    eventually,
    record_of,
)
from shedlock_py.testing.contract.threads import at_once
from shedlock_py.testing.doubles import RecordingListener

FIRE_TIME = datetime(2020, 2, 29, 2, tzinfo=UTC)
REASONS = ['it\'s "quoted"; DROP TABLE x -- {}$name', "ünï\N{PILE OF POO}: \\ %s :name #1", "deploy: step 2: migrate"]
BAD_OPTIONS: list[tuple[str, Any]] = [
    ("for_", "0s"), ("for_", "soon"), ("wait", -1), ("reason", "a\nb"), ("reason", 7), ("by", ""), ("by", "a: b"),
]  # fmt: skip


class PauseContract(ContractBase):
    """The tests of ``pause`` and ``resume``."""

    def test_no_job_runs_during_a_pause(self, provider: Any, other: Any, name: str, events: RecordingListener) -> None:
        record = provider.pause(name, "1m", reason="migration", by="alice")
        assert (record.name, record.is_held, record.is_paused) == (name, True, True)
        assert record.pause == Pause("alice", "migration")
        assert timedelta(seconds=30) < record.remaining <= timedelta(minutes=1) + self.kept_longer
        assert record_of(other, name) == record
        for replica in (provider, other):
            assert replica.acquire(LockRequest(name, LONG)) is None
            with try_hold(name, lock_at_most_for=LONG, provider=replica) as lease:
                assert lease is None
        assert [event.reason for event in events.of(LockSkipped)] == ["held", "held"]
        assert other.resume(name) is True
        assert not record_of(provider, name).is_held
        with hold(name, lock_at_most_for=LONG, provider=provider) as lease:
            assert lease is not None

    def test_a_pause_after_a_run_has_no_minimum_hold(self, provider: Any, other: Any, name: str) -> None:
        """The next holder may acquire the lock as soon as the pause ends."""
        before = acquired(provider, LockRequest(name, LONG))
        assert provider.release(before)
        record = provider.pause(name, "1m")
        assert record.is_paused
        assert record.pause.by
        assert record.pause.reason == ""
        if before.fencing_token:
            assert record.fencing_token > before.fencing_token
        assert provider.resume(name) is True
        after = acquired(other, LockRequest(name, LONG))
        if before.fencing_token:
            assert after.fencing_token > record.fencing_token

    def test_a_pause_ends_by_itself(self, provider: Any, name: str) -> None:
        provider.pause(name, SHORT)

        def free() -> Any:
            record = record_of(provider, name)
            return None if record.is_held else record

        # Check one record twice: a store with a coarse clock may read the next record at an earlier time.
        assert eventually(free, "the end of a short pause").is_paused is False
        assert provider.resume(name) is False
        acquired(provider, LockRequest(name, LONG))

    def test_i2_neither_pause_nor_resume_touches_a_running_job(self, provider: Any, other: Any, name: str) -> None:
        lease = acquired(provider, LockRequest(name, LONG, holder="replica-1"))
        before = record_of(provider, name)
        record = other.pause(name, "1h", reason="migration")
        assert (record.is_paused, record.is_held, record.holder, record.pause) == (False, True, "replica-1", None)
        assert other.resume(name) is False
        assert record_of(provider, name) == before
        assert provider.extend(lease, LONG) is lease
        assert provider.release(lease) is True

    def test_resume_changes_nothing_where_there_is_no_pause(self, provider: Any, name: str) -> None:
        assert provider.resume(name) is False
        assert provider.record(name) is None
        assert provider.release(acquired(provider, LockRequest(name, LONG)))
        assert provider.resume(name) is False
        provider.pause(name, "1m")
        assert [provider.resume(name) for _ in range(2)] == [True, False]

    def test_a_pause_waits_for_the_end_of_a_job(self, provider: Any, other: Any, name: str) -> None:
        lease = acquired(other, LockRequest(name, LONG))
        timer = threading.Timer(0.2, other.release, [lease])
        timer.start()
        record = provider.pause(name, "1m", wait=LONGEST_WAIT)
        timer.join()
        assert record.is_paused

    def test_a_pause_that_waits_too_short_leaves_the_job_its_lock(self, provider: Any, name: str) -> None:
        lease = acquired(provider, LockRequest(name, LONG, holder="replica-1"))
        record = provider.pause(name, "1m", wait="50ms")
        assert (record.is_paused, record.holder) == (False, "replica-1")
        assert provider.release(lease) is True

    def test_i4_a_pause_does_not_cut_a_minimum_hold(self, provider: Any, name: str) -> None:
        assert provider.release(acquired(provider, LockRequest(name, LONG, LONG)))
        assert provider.pause(name, "1h").is_paused is False
        assert record_of(provider, name).remaining <= timedelta(minutes=1) + self.kept_longer

    def test_a_pause_replaces_the_pause_that_was_read(self, provider: Any, other: Any, name: str) -> None:
        """The new pause may also end earlier."""
        for for_ in ("30m", "10s"):
            lock = f"{name}-{for_}"
            first = provider.pause(lock, "1m", reason="first", by="alice")
            second = other.pause(lock, for_, reason="second", by="bob", expected=first)
            assert second.pause == Pause("bob", "second")
            assert (second.lock_until > first.lock_until) is (for_ == "30m")
            assert second.locked_by != first.locked_by
            assert record_of(provider, lock) == second
            assert provider.acquire(LockRequest(lock, LONG)) is None
            assert provider.resume(lock) is True
            acquired(provider, LockRequest(lock, LONG))

    def test_i2_no_operator_touches_the_pause_of_another(self, provider: Any, other: Any, name: str) -> None:
        """The pause that was read has ended since then, and another operator has paused the lock."""
        read = provider.pause(name, "1m", reason="first", by="alice")
        assert provider.resume(name, expected=read) is True
        second = provider.pause(name, "1m", reason="second", by="bob")
        assert other.resume(name, expected=read) is False
        assert other.force_release(name, expected=read) is False
        for expected in (None, read):
            with pytest.raises(ProviderError, match="paused by bob: second"):
                other.pause(name, "1m", reason="third", by="carol", expected=expected)
        assert record_of(provider, name) == second
        assert other.resume(name, expected=second) is True

    def test_i11_a_pause_uses_up_no_fire_time(self, provider: Any, name: str) -> None:
        assert provider.release(acquired(provider, LockRequest(name, LONG, fire_time=FIRE_TIME)))
        assert provider.pause(name, "1m").last_fire_time == FIRE_TIME
        later = LockRequest(name, LONG, fire_time=FIRE_TIME + timedelta(hours=1))
        assert provider.acquire(later) is None
        assert provider.resume(name) is True
        assert record_of(provider, name).last_fire_time == FIRE_TIME
        assert provider.acquire(LockRequest(name, LONG, fire_time=FIRE_TIME)) is None
        acquired(provider, later)

    def test_any_reason_is_kept_as_it_is(self, provider: Any, name: str) -> None:
        name = f"{name}' \"$x {{:ä%"
        for reason in REASONS:
            assert provider.pause(name, "1m", reason=reason, by="al:ice@web#1").pause == Pause("al:ice@web#1", reason)
            assert [record.is_paused for record in provider.records(name)] == [True]
            assert provider.resume(name) is True

    def test_a_long_reason_is_cut_off(self, provider: Any, name: str) -> None:
        record = provider.pause(name, "1m", reason="x" * 1000, by="a" * 100)
        assert len(record.holder) == 200
        assert record.pause.by == "a" * 100
        assert record.pause.reason.strip("x") == "..."
        assert provider.resume(name) is True

    def test_options_that_no_pause_can_have_are_refused(self, provider: Any, name: str) -> None:
        for option, value in BAD_OPTIONS:
            with pytest.raises(ConfigurationError, match=option):
                provider.pause(name, **{"for_": "1m", option: value})
        assert provider.record(name) is None

    def test_names_that_no_lock_can_have_are_refused(self, provider: Any) -> None:
        for bad in ("", " ", "x" * 65, "a\x00b", "\ud800"):
            for tool in (lambda name: provider.pause(name, "1m"), provider.resume):
                with pytest.raises(ConfigurationError, match="lock name"):
                    tool(bad)

    def test_force_release_ends_a_pause(self, provider: Any, name: str) -> None:
        provider.pause(name, "1m")
        assert provider.force_release(name) is True
        assert provider.resume(name) is False
        acquired(provider, LockRequest(name, LONG))

    def test_i1_of_pauses_and_jobs_at_once_one_gets_the_lock(self, provider: Any, other: Any, name: str) -> None:
        """Either one job gets the lock and no pause exists, or one operator pauses it and no job gets it.

        If the store does not reply in time, on a busy machine, a caller gets an error, and neither lock nor pause.
        """
        for round_ in range(4):
            lock = f"{name}/{round_}"
            if round_ % 2:  # the record exists already
                assert provider.release(acquired(provider, LockRequest(lock, LONG)))

            def work(number: int, lock: str = lock) -> Any:
                replica = (provider, other)[number % 2]
                try:
                    return replica.pause(lock, "1m") if number % 4 < 2 else replica.acquire(LockRequest(lock, LONG))
                except ProviderError as error:
                    return error

            results = at_once(8, work)
            records = [result for result in results if isinstance(result, LockRecord)]
            leases = [result for result in results if isinstance(result, Lease)]
            assert len(leases) + sum(record.is_paused for record in records) <= 1
            if not any(isinstance(result, ProviderUnreachable) for result in results):
                holders = {record.locked_by for record in records if not record.is_paused}
                assert holders == {lease.locked_by for lease in leases}
                assert record_of(provider, lock).is_paused is not bool(leases)

    def test_i2_operators_at_once_take_no_lock_from_a_job(self, provider: Any, other: Any, name: str) -> None:
        """While some operators resume a pause and others replace it, no job loses a lock that it was granted."""
        for round_ in range(3):
            lock = f"{name}/{round_}"
            provider.pause(lock, "1m")

            def work(number: int, lock: str = lock) -> Any:
                replica = (provider, other)[number % 2]
                with suppress(ProviderError):  # the machine is busy, or a pause exists
                    if number >= 5:
                        return replica.acquire(LockRequest(lock, LONG))
                    if number >= 3:
                        replica.resume(lock)
                    else:
                        replica.pause(lock, "1m", expected=replica.record(lock))
                return None

            leases = [lease for lease in at_once(8, work) if lease is not None]
            assert len(leases) <= 1
            if leases:
                assert record_of(provider, lock).locked_by == leases[0].locked_by
                assert provider.extend(leases[0], LONG) is leases[0]
                assert provider.release(leases[0])


class AsyncPauseContract(PauseContract, AsyncContractBase):
    """Cancelled pauses, which only async providers can show."""

    def test_i12_a_cancelled_pause_is_undone(self, provider: Any, other: Any, name: str) -> None:
        async def cancel_each() -> list[int]:
            undone = []
            for moment in self.moments:
                work = asyncio.ensure_future(provider.async_provider.pause(f"{name}/{moment}", "1m"))
                for _ in range(moment):
                    await asyncio.sleep(0)
                work.cancel()
                await asyncio.wait([work])
                if work.cancelled():
                    undone.append(moment)
            return undone

        def is_free(moment: int) -> bool:
            return other.acquire(LockRequest(f"{name}/{moment}", LONG)) is not None

        undone = provider.run(cancel_each())
        assert undone
        for moment in undone:
            eventually(partial(is_free, moment), "the undo of a pause")

    def test_a_wait_can_be_cancelled(self, provider: Any, name: str) -> None:
        lease = acquired(provider, LockRequest(name, LONG))

        async def wait_and_cancel() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(provider.async_provider.pause(name, "1m", wait="1h"), 0.1)

        provider.run(wait_and_cancel())
        assert provider.release(lease) is True
