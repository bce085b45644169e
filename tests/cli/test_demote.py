"""``shedlock demote`` with running electors."""

from __future__ import annotations

import inspect
import threading
import time
from datetime import timedelta

import pytest

from shedlock_py import LeaderElector
from shedlock_py.cli.manage import demote
from tests.cli.harness import provider_at, run, take
from tests.support.polling import wait_until


@pytest.mark.not_quick("two replicas in real time")
def test_another_leads_afterwards_and_never_two(store: str) -> None:
    def make(holder: str) -> LeaderElector:
        return LeaderElector(
            store, "election", holder=holder, lease_duration="1500ms", renew_deadline="1300ms", retry_period="800ms"
        )

    overlaps: list[float] = []
    done = threading.Event()

    def observe() -> None:
        while not done.is_set():
            # Read the first elector again: both must lead at one moment.
            if first.is_leader() and second.is_leader() and first.is_leader():
                overlaps.append(time.monotonic())
            time.sleep(0.005)

    with make("first") as first:
        assert first.wait_until_leader("10s")
        with make("second") as second:
            observer = threading.Thread(target=observe)
            observer.start()
            try:
                demoted = run("demote", "election", "--renew-deadline", "1300ms", "--cooldown", "1h", store=store)
                assert demoted.exit_code == 0, demoted.output
                assert demoted.stdout.startswith("first is demoted: nobody leads in 'election' for 1.3s, then another")
                assert run("leader", "election", store=store).exit_code == 1
                wait_until(second.is_leader)
            finally:
                done.set()
                observer.join()
            assert overlaps == []
            assert not first.is_leader()
            assert run("leader", "election", store=store).stdout.startswith("second leads in 'election'")


def test_the_lease_is_taken_away_and_the_name_kept_free_for_the_renew_deadline(store: str) -> None:
    provider = provider_at(store)
    lease = take(store, "election", "1h", holder="old")
    done = run("demote", "election", "--renew-deadline", "30s", "--cooldown", "5m", store=store)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "old is demoted: nobody leads in 'election' for 30s, then another can (it itself in 5m)\n"
    assert provider.extend(lease, "1h") is None
    record = provider.record("election")
    assert record is not None
    assert timedelta(seconds=30) <= record.lock_until - record.locked_at < timedelta(seconds=31)


@pytest.mark.parametrize(("arguments", "seconds"), [((), 10), (("--lease-duration", "1m"), 40)])
def test_the_default_is_the_electors(store: str, arguments: tuple[str, ...], seconds: int) -> None:
    lease = arguments[1] if arguments else "15s"
    assert LeaderElector(store, "election", lease_duration=lease).renew_deadline == timedelta(seconds=seconds)
    (default,) = (param.default for param in demote.params if param.name == "lease_duration")
    assert default == inspect.signature(LeaderElector).parameters["lease_duration"].default
    take(store, "election", "1h", holder="old")
    done = run("demote", "election", *arguments, store=store)
    assert done.stdout == f"old is demoted: nobody leads in 'election' for {seconds}s, then another can\n"


def test_nobody_is_demoted_where_nobody_leads(store: str) -> None:
    done = run("demote", "election", store=store)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "shedlock: nobody leads in 'election'\n")
