"""Tools for operators: read records, free locks, take over, prune."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import ConfigurationError, LockProvider, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.model.record import ONCE
from shedlock_py.testing.contract.base import LONG, ContractBase, acquired, expired, record_of

NOTHING = timedelta(0)
FIRE_TIME = datetime(2020, 2, 29, 2, tzinfo=UTC)


class ToolsContract(ContractBase):
    def test_the_record_of_a_held_lock_says_who_and_until_when(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        lease = acquired(provider, LockRequest(name, LONG, holder="replica-1"))
        record = record_of(other, name)
        assert (record.name, record.holder, record.is_held) == (name, "replica-1", True)
        assert record.locked_by == f"replica-1#{lease.claim_id}"
        assert record.fencing_token == lease.fencing_token
        assert record.last_fire_time is None
        assert record.locked_at < record.lock_until
        assert record.locked_at <= record.read_at
        assert record.remaining == record.lock_until - record.read_at
        assert timedelta(seconds=30) < record.remaining <= timedelta(seconds=60) + self.kept_longer
        for moment in (record.locked_at, record.lock_until, record.read_at):
            assert moment.utcoffset() == NOTHING

    def test_the_record_of_a_free_lock_says_who_was_last(self, provider: LockProvider, name: str) -> None:
        provider.release(acquired(provider, LockRequest(name, LONG, holder="replica-1")))
        record = record_of(provider, name)
        assert (record.holder, record.is_held, record.remaining) == ("replica-1", False, NOTHING)
        assert record.locked_at <= record.lock_until <= record.read_at

    def test_an_unknown_name_has_no_record(self, provider: LockProvider, name: str) -> None:
        assert provider.record(name) is None
        assert provider.records(name) == []

    def test_records_lists_those_with_a_prefix(self, provider: LockProvider, name: str) -> None:
        held = acquired(provider, LockRequest(f"{name}/b", LONG))
        provider.release(acquired(provider, LockRequest(f"{name}/a", LONG)))
        acquired(provider, LockRequest(f"{name[:-1]}/c", LONG))
        records = provider.records(f"{name}/")
        assert [(record.name, record.is_held) for record in records] == [(f"{name}/a", False), (f"{name}/b", True)]
        assert records[1] == provider.record(held.name)
        assert {record.name for record in provider.records()} >= {f"{name}/a", f"{name}/b", f"{name[:-1]}/c"}

    def test_i2_force_release_ends_a_lease_for_its_holder(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        assert provider.force_release(name) is False
        lease = acquired(provider, LockRequest(name, LONG, LONG))
        assert other.force_release(name) is True
        assert other.force_release(name) is False
        assert not record_of(provider, name).is_held
        successor = acquired(other, LockRequest(name, LONG))
        assert provider.extend(lease, LONG) is None
        assert provider.release(lease) is False
        assert other.release(successor) is True

    def test_i2_an_operator_acts_on_the_record_that_was_read(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        """After the read, the lease has ended and another holder has acquired the lock."""
        former = acquired(provider, LockRequest(name, LONG, holder="former"))
        read = record_of(other, name)
        assert provider.release(former)
        lease = acquired(provider, LockRequest(name, LONG, holder="living"))
        before = record_of(provider, name)
        assert other.force_release(name, expected=read) is False
        with pytest.raises(ProviderError, match="changed since it was read"):
            other.take_over(LockRequest(name, LONG, holder="operator"), expected=read)
        assert record_of(provider, name) == before
        assert provider.extend(lease, LONG) is lease
        assert other.force_release(name, expected=before) is True
        assert provider.release(lease) is False

    def test_a_take_over_from_the_record_that_was_read(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        """An extension does not change the holder."""
        former = acquired(provider, LockRequest(name, LONG, holder="former"))
        read = record_of(other, name)
        assert provider.extend(former, "2m") is former
        lease = other.take_over(LockRequest(name, LONG, holder="new"), expected=read)
        assert record_of(provider, name).holder == "new"
        assert provider.release(former) is False
        assert other.release(lease) is True

    def test_i2_nobody_is_freed_by_a_record_of_a_lock_that_was_free(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        assert provider.release(acquired(provider, LockRequest(name, LONG)))
        read = record_of(other, name)
        lease = acquired(provider, LockRequest(name, LONG))
        assert other.force_release(name, expected=read) is False
        assert provider.release(lease) is True

    def test_a_key_of_run_once_that_an_operator_frees_is_given_back(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        """Its task has not succeeded, so the next caller runs it."""
        lease = acquired(provider, LockRequest(name, LONG, fire_time=ONCE))
        assert other.force_release(name) is True
        assert record_of(provider, name).is_done is False
        assert provider.release(lease) is False
        acquired(provider, LockRequest(name, LONG, fire_time=ONCE))

    def test_i11_a_key_of_run_once_that_was_done_meanwhile_stays_done(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        for at_least in (NOTHING, LONG):
            key = f"{name}/{at_least}"
            lease = acquired(provider, LockRequest(key, LONG, at_least, fire_time=ONCE))
            read = record_of(other, key)
            assert provider.release(lease) is True
            other.force_release(key, expected=read)
            assert provider.acquire(LockRequest(key, LONG, fire_time=ONCE)) is None

    def test_i11_a_key_of_run_once_that_is_in_use_again_is_not_forgotten(
        self, provider: Any, other: LockProvider, name: str
    ) -> None:
        """Another operator has let the task run again since the record was read. All runs of a key have the same fire
        time."""
        request = LockRequest(name, LONG, fire_time=ONCE)
        assert provider.release(acquired(provider, request))
        read = record_of(provider, name)
        assert provider.forget_fire_time(name) is True
        lease = acquired(other, request)
        assert provider.forget_fire_time(name, expected=read) is False
        assert provider.forget_fire_time(name) is False, "its task may succeed yet"
        assert other.release(lease) is True
        assert other.acquire(request) is None
        assert provider.forget_fire_time(name, expected=read) is False
        assert other.acquire(request) is None

    def test_i2_a_fire_time_that_was_granted_since_the_record_was_read_stays(self, provider: Any, name: str) -> None:
        provider.release(acquired(provider, LockRequest(name, LONG, fire_time=FIRE_TIME)))
        read = record_of(provider, name)
        later = FIRE_TIME + timedelta(hours=1)
        provider.release(acquired(provider, LockRequest(name, LONG, fire_time=later)))
        provider.forget_fire_time(name, expected=read)
        assert record_of(provider, name).last_fire_time == later

    def test_force_release_of_an_expired_lock_changes_nothing(self, provider: LockProvider, name: str) -> None:
        expired(provider, name)
        before = record_of(provider, name)
        assert (before.is_held, before.remaining) == (False, NOTHING)
        assert provider.force_release(name) is False
        assert provider.record(name) == before

    def test_force_release_ends_the_minimum_hold_of_a_released_lock(self, provider: LockProvider, name: str) -> None:
        provider.release(acquired(provider, LockRequest(name, LONG, LONG)))
        assert provider.force_release(name) is True
        acquired(provider, LockRequest(name, LONG))

    def test_i2_a_take_over_ends_the_lease_of_the_former_holder(
        self, provider: LockProvider, other: LockProvider, name: str
    ) -> None:
        former = acquired(provider, LockRequest(name, LONG, LONG, holder="former"))
        lease = other.take_over(LockRequest(name, "2m", holder="new"))
        assert lease.is_trusted()
        record = record_of(provider, name)
        assert (record.holder, record.is_held) == ("new", True)
        assert record.remaining > timedelta(seconds=90)
        assert provider.extend(former, "1h") is None
        assert not former.is_trusted()
        assert provider.release(former) is False
        assert provider.acquire(LockRequest(name, LONG)) is None
        assert other.extend(lease, LONG) is lease
        assert other.release(lease) is True
        acquired(provider, LockRequest(name, LONG))

    def test_a_take_over_of_a_free_or_unknown_lock_grants_it(self, provider: LockProvider, name: str) -> None:
        for _ in range(2):
            lease = provider.take_over(LockRequest(name, LONG, holder="new"))
            assert record_of(provider, name).is_held
            assert provider.release(lease) is True

    def test_prune_deletes_what_is_free_and_old(self, provider: LockProvider, name: str) -> None:
        held = acquired(provider, LockRequest(f"{name}/held", LONG))
        provider.release(acquired(provider, LockRequest(f"{name}/minimum-hold", LONG, LONG)))
        for ending in "abc":
            provider.release(acquired(provider, LockRequest(f"{name}/{ending}", LONG)))
        expired(provider, f"{name}/expired")
        assert provider.prune("1h") == 0 or provider.records(f"{name}/a") != []
        assert len(provider.records(f"{name}/")) == 6
        time.sleep(self.clock_resolution)
        assert provider.prune(0) >= 4
        assert [record.name for record in provider.records(f"{name}/")] == [f"{name}/held", f"{name}/minimum-hold"]
        assert provider.prune("1h") == 0
        assert provider.release(held) is True
        acquired(provider, LockRequest(f"{name}/a", LONG))

    def test_prune_of_a_prefix_keeps_all_other_records(self, provider: LockProvider, name: str) -> None:
        for ending in ("_a", "_b/c", "xa", ""):  # "_" is a wildcard in LIKE
            provider.release(acquired(provider, LockRequest(f"{name}{ending}", LONG)))
        time.sleep(self.clock_resolution)
        assert provider.prune(0, f"{name}_") == 2
        assert [record.name for record in provider.records(name)] == [name, f"{name}xa"]

    def test_prune_refuses_what_is_no_duration(self, provider: LockProvider) -> None:
        for unused_for in ("10", -1, "soon"):
            with pytest.raises(ConfigurationError, match="unused_for"):
                provider.prune(unused_for)

    def test_no_tool_passes_a_bad_name_on(self, provider: LockProvider) -> None:
        for bad in ("", " ", "x" * 65, "a\x00b", "a\nb", "\ud800"):
            for tool in (provider.record, provider.force_release):
                with pytest.raises(ConfigurationError, match="lock name"):
                    tool(bad)

    def test_a_prefix_that_no_name_can_have_finds_no_record(self, provider: LockProvider) -> None:
        for prefix in ("x" * 65, "a\x00b", "a\nb", "\ud800", "🔒" * 300):
            with suppress(ConfigurationError):  # a refusal or an empty list is right, a driver's error is not
                assert provider.records(prefix) == [], repr(prefix)

    def test_create_schema_again_changes_nothing(self, provider: LockProvider, other: LockProvider, name: str) -> None:
        lease = acquired(provider, LockRequest(name, LONG))
        provider.create_schema()
        other.create_schema()
        assert provider.release(lease) is True

    def test_checks_of_the_store_write_nothing(self, provider: Any, name: str) -> None:
        _require_checks(provider)
        provider.release(acquired(provider, LockRequest(name, LONG)))
        before = provider.record(name)
        found = provider.checks()
        assert len({check.check for check in found}) == len(found)
        for check in found:
            assert check.status in ("ok", "warning"), check
            assert "\n" not in f"{check.message}{check.hint}"
        assert provider.record(name) == before
        assert provider.acquire(LockRequest(name, LONG)) is not None

    def test_i5_checks_of_a_store_that_does_not_reply(self, failing_provider: Any) -> None:
        _require_checks(failing_provider)
        with suppress(ProviderUnreachable):
            assert failing_provider.checks() == [], "it asks nothing"


def _require_checks(provider: object) -> None:
    if not hasattr(provider, "checks"):
        pytest.skip("this provider has no checks")
