"""``shedlock demote`` against electors that run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import LeaderElector, Lease, LockProvider, LockRecord, LockRequest, provider_from_url
from shedlock_py.durations import Duration
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from tests.cli.harness import file_store, run, take
from tests.support.polling import wait_until

# A long belief and rare renewals: what is left of the lease at a look is then often less than the belief to come.
DURATIONS: dict[str, Any] = {"lease_duration": "1500ms", "renew_deadline": "1300ms", "retry_period": "800ms"}

MakeElector = Callable[..., LeaderElector]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return file_store(tmp_path)


@pytest.fixture
def make_elector(store: str) -> Iterator[MakeElector]:
    with ExitStack() as stack:

        def make(holder: str, provider: Any = store, **options: Any) -> LeaderElector:
            elector = LeaderElector(provider, "election", holder=holder, **{**DURATIONS, **options})
            stack.callback(elector.stop, "20s")
            elector.start()
            return elector

        yield make


class Deaf(SqlAlchemyLockProvider):
    """Its renewals may be done without their replies coming back in time: the worst that a leader can go on."""

    is_cut_off = False
    renewed = 0

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        if self.is_cut_off:
            raise OSError("cut off")
        extended = super().extend(lease, lock_at_most_for)
        self.renewed += 1
        return extended


def remaining(provider: LockProvider) -> timedelta:
    record = provider.record("election")
    assert record is not None
    return record.remaining


def test_another_leads_afterwards_and_never_two(store: str, make_elector: MakeElector) -> None:
    first = make_elector("first")
    assert first.wait_until_leader("10s")
    second = make_elector("second")
    overlaps: list[float] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            # In this order, and again: both at one moment.
            if first.is_leader() and second.is_leader() and first.is_leader():
                overlaps.append(time.monotonic())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        demoted = run("demote", "election", "--cooldown", "1h", store=store)
        assert demoted.exit_code == 0, demoted.output
        assert demoted.stdout.startswith("first is demoted: nobody leads in 'election' for 1.")
        assert run("leader", "election", store=store).exit_code == 1
        wait_until(second.is_leader)
    finally:
        done.set()
        looking.join()
    assert overlaps == []
    assert not first.is_leader()
    assert run("leader", "election", store=store).stdout.startswith("second leads in 'election'")


def test_a_leader_that_hears_of_nothing_believes_no_longer_than_the_name_is_kept_free(
    store: str, make_elector: MakeElector
) -> None:
    provider = Deaf(store)
    first = make_elector("first", provider)
    assert first.wait_until_leader("10s")
    wait_until(lambda: provider.renewed > 0)
    side = provider_from_url(store)
    # Look when little is left, with a renewal between that and the take-over: what was left would be too short.
    wait_until(lambda: remaining(side) < timedelta(milliseconds=800))
    take_over = SqlAlchemyLockProvider.take_over

    def after_a_renewal(self: SqlAlchemyLockProvider, request: LockRequest) -> Lease:
        before = provider.renewed
        wait_until(lambda: provider.renewed > before)
        provider.is_cut_off = True
        return take_over(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqlAlchemyLockProvider, "take_over", after_a_renewal)
        assert run("demote", "election", store=store).exit_code == 0
    record: LockRecord | None = None
    while first.is_leader():
        record = side.record("election")
        assert record is not None
        assert record.is_held or not first.is_leader()
    assert record is not None, "it must have believed for a while"
    provider.close()


def test_a_leader_that_does_not_renew(store: str) -> None:
    """Its lease has been renewed once, so its length is not known; it ends while we wait for another renewal."""
    provider = provider_from_url(store)
    lease = take(store, "election", "1h", holder="dead")
    assert provider.extend(lease, "400ms") is not None
    time_ends = time.monotonic() + 10
    # The end of the lease was moved to nearer than a short time after the acquisition: make it look old.
    assert isinstance(provider, SqlAlchemyLockProvider)
    with provider._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE shedlock SET locked_at = '2026-01-01 00:00:00.000000'")
    done = run("demote", "election", store=store)
    assert done.exit_code == 1
    waiting, ended = done.stderr.splitlines()
    assert waiting.startswith("waiting until dead renews its lease, or that ends in 0.")
    assert ended == "shedlock: dead does not lead in 'election' any more: nothing to do"
    assert time.monotonic() < time_ends
    record = provider.record("election")
    assert record is not None
    assert record.holder == "dead"


def test_who_knows_the_renew_deadline_need_not_wait(store: str) -> None:
    provider = provider_from_url(store)
    lease = take(store, "election", "1h", holder="old")
    assert isinstance(provider, SqlAlchemyLockProvider)
    with provider._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE shedlock SET locked_at = '2026-01-01 00:00:00.000000'")
    done = run("demote", "election", "--renew-deadline", "30s", "--cooldown", "5m", store=store)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "old is demoted: nobody leads in 'election' for 30s, then another can (it itself in 5m)\n"
    assert provider.extend(lease, "1h") is None
    record = provider.record("election")
    assert record is not None
    assert timedelta(seconds=25) < record.remaining < timedelta(seconds=31)
    again = run("demote", "election", store=store)
    assert again.exit_code == 1
    assert again.stderr == "shedlock: nobody leads in 'election'\n"


def test_nobody_leads(store: str) -> None:
    done = run("demote", "election", store=store)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "shedlock: nobody leads in 'election'\n")
