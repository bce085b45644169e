"""Without a majority nothing is granted, and an unknown outcome is an error (I5)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from shedlock_py import Lease, LockRequest, ProviderUnreachable
from tests.stores.redis_quorum.quorums import NAME, Quorum, acquired, outcome, start_new_quorum
from tests.support.polling import wait_until
from tests.support.timing import BUSY, Stopwatch

LONGEST = "1s"
TIMEOUT = 2.0

OPERATIONS: dict[str, Callable[[Any, Lease], object]] = {
    "acquire": lambda provider, lease: provider.acquire(LockRequest("other", "1s")),
    "extend": lambda provider, lease: provider.extend(lease, "1s"),
    "release": lambda provider, lease: provider.release(lease),
    "take_over": lambda provider, lease: provider.take_over(LockRequest("other", "1s")),
    "undo": lambda provider, lease: provider.undo(lease),
    "forget_fire_time": lambda provider, lease: provider.forget_fire_time(NAME),
    "force_release": lambda provider, lease: provider.force_release(NAME),
    "record": lambda provider, lease: provider.record(NAME),
    "records": lambda provider, lease: provider.records(),
    "prune": lambda provider, lease: provider.prune(timedelta(minutes=1)),
    "start_new_quorum": lambda provider, lease: start_new_quorum(provider),
}


@pytest.mark.parametrize(
    ("size", "kind", "fault"),
    [
        (3, "sync", "kill"),
        pytest.param(3, "sync", "pause", marks=pytest.mark.slow("waits for each time limit")),
        pytest.param(5, "async", "kill", marks=pytest.mark.slow("five servers run the same program")),
    ],
)
def test_i5_i13_every_operation_fails_in_time(quorum: Quorum, kind: str, fault: str) -> None:
    provider = quorum.provider(kind=kind, longest_lease=LONGEST, timeout=f"{TIMEOUT}s")
    lease = acquired(provider, at_most="1s")
    for number in range(quorum.majority):
        getattr(quorum.servers[number], fault)()
    with pytest.raises(ProviderUnreachable):  # not a skip, although a remaining server reports that it is held
        provider.acquire(LockRequest(NAME, "1s"))
    for operation, work in OPERATIONS.items():
        with Stopwatch() as watch, pytest.raises(ProviderUnreachable) as caught:
            work(provider, lease)
        assert watch.seconds < TIMEOUT * 1.1 + BUSY, operation
        assert caught.value.operation == operation
        assert f"of {quorum.size} servers did not reply" in str(caught.value)
    assert not lease.is_trusted()

    for server in quorum.servers:
        server.resume()
        server.start()
    wait_until(lambda: outcome(provider, at_most="1s") == "lease", what=f"a lease after the {fault}")
    wait_until(lambda: outcome(provider, "other", "1s") == "lease", what="another lock, to be taken over")


def test_extend_and_release_can_be_repeated_after_an_outage(quorum: Quorum, kind: str) -> None:
    provider = quorum.provider(kind=kind, via_proxies=True)
    lease = acquired(provider, at_most="2m")
    quorum.cut_off(*range(quorum.majority))
    with pytest.raises(ProviderUnreachable):
        provider.extend(lease, "1m")
    assert 0 < lease.trusted_for().total_seconds() < 60
    until = time.monotonic() + lease.trusted_for().total_seconds()
    quorum.cut_off()
    assert provider.extend(lease, "1m") is lease
    assert time.monotonic() + lease.trusted_for().total_seconds() > until
    quorum.cut_off(*range(quorum.majority))
    with pytest.raises(ProviderUnreachable):
        provider.release(lease)
    quorum.cut_off()
    assert not lease.is_trusted()
    assert provider.release(lease)
    quorum.wait_until_free()
    assert outcome(provider) == "lease"


def test_an_acquire_that_failed_leaves_nothing_behind(quorum: Quorum, kind: str) -> None:
    """The servers that voted are free at once."""
    provider = quorum.provider(kind=kind, without=range(quorum.majority))
    assert "did not reply" in outcome(provider)
    assert all(quorum.fields(number) == {} for number in range(quorum.size))
    lost = quorum.provider(kind=kind, via_proxies=True)
    release = acquired(lost)
    assert lost.release(release)
    before = [quorum.fields(number) for number in range(quorum.size)]
    quorum.cut_off(*range(quorum.majority))
    assert "did not reply" in outcome(lost)
    assert [quorum.fields(number) for number in range(quorum.size)] == before
