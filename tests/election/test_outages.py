"""Five electors on real servers that stop answering for two leases."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from shedlock_py import LeaderElector, ProviderFailed
from shedlock_py.testing import RecordingListener
from tests.core.keepalive.test_real_stores import STORES, Opened
from tests.support.polling import wait_until
from tests.support.stores import Store

LEASE, RENEW, RETRY = 3.0, 2.0, 0.5


@pytest.fixture
def stores(make_store: Callable[..., Store]) -> Iterator[list[Opened]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Opened(make_store(product)))) for product in STORES]


def leaders(electors: list[LeaderElector]) -> list[LeaderElector]:
    found = [elector for elector in electors if elector.is_leader()]
    # One may have stepped down, and another begun, while they were asked in turn. Who leads still has led in between.
    assert len([elector for elector in found if elector.is_leader()]) <= 1
    return found


def sampled(electors: list[LeaderElector], seconds: float) -> list[tuple[float, bool]]:
    """Whether there was a leader, moment by moment; never two."""
    began = time.monotonic()
    samples = []
    while (moment := time.monotonic() - began) < seconds:
        samples.append((moment, bool(leaders(electors))))
        time.sleep(0.005)
    return samples


def outage(store: Opened) -> float:
    """Seconds without a leader after the store was back."""
    name = f"outage-{time.monotonic_ns()}"
    durations = {"lease_duration": LEASE, "renew_deadline": RENEW, "retry_period": RETRY}
    electors = [LeaderElector(store.provider, name, holder=f"node-{n}", **durations) for n in range(5)]  # type: ignore[arg-type]  # durations
    with ExitStack() as stack:
        for elector in electors:
            stack.enter_context(elector)
        while not leaders(electors):
            time.sleep(0.01)
        store.server.pause()
        during = sampled(electors, 2 * LEASE)
        assert not any(led for moment, led in during if moment > LEASE)
        store.server.resume()
        resumed, stalled = time.monotonic(), 0.0
        while not leaders(electors):
            before = time.monotonic()
            assert before < resumed + 30, store.server
            time.sleep(0.005)
            stalled += time.monotonic() - before - 0.005  # this machine's doing, not an elector's
        waited = time.monotonic() - resumed - stalled
        after = [led for _, led in sampled(electors, 2 * RETRY)]
        assert any(after), store.server
        wait_until(lambda: bool(leaders(electors)), what="a leader again, if a busy machine kept it from renewing")
    return waited


def test_no_leader_during_an_outage_and_one_soon_after(stores: list[Opened], listener: RecordingListener) -> None:
    with ThreadPoolExecutor(len(stores)) as threads:
        waited = dict(zip(STORES, threads.map(outage, stores), strict=True))
    print({product: f"{seconds:.2f} s" for product, seconds in waited.items()})
    assert max(waited.values()) < LEASE + RETRY * 1.2 + 2, waited  # the cap of the pauses, one look, a busy machine
    # Five nodes, two leases: no herd.
    attempts = Counter(event.lock_name for event in listener.of(ProviderFailed))
    assert all(count <= 5 * 2 * LEASE / RETRY for count in attempts.values()), attempts
