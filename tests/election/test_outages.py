"""Five electors on real servers that do not reply for two leases."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

from shedlock_py import LeaderElector, ProviderFailed
from shedlock_py.testing import RecordingListener
from tests.support.polling import wait_until
from tests.support.stores import Store

STORES = ("postgres", "mariadb", "redis", "mongodb")
LEASE, RENEW, RETRY = 3.0, 2.0, 0.5
DURATIONS: dict[str, Any] = {"lease_duration": LEASE, "renew_deadline": RENEW, "retry_period": RETRY}


def is_led(electors: list[LeaderElector]) -> bool:
    """Whether there is a leader; never two."""
    leaders = [elector for elector in electors if elector.is_leader()]
    # One may have stopped and another begun to lead between two calls. A node that leads now has led in between.
    assert sum(elector.is_leader() for elector in leaders) <= 1
    return bool(leaders)


def sample(electors: list[LeaderElector], seconds: float) -> list[tuple[float, bool]]:
    """At many moments from now on, whether there is a leader."""
    began = time.monotonic()
    samples = []
    while (moment := time.monotonic() - began) < seconds:
        samples.append((moment, is_led(electors)))
        time.sleep(0.005)
    return samples


def seconds_without_a_leader_after_an_outage(store: Store) -> float:
    server, name = store.servers[0], f"outage-{time.monotonic_ns()}"
    with ExitStack() as stack:
        provider: Any = stack.enter_context(closing(store.open()))
        electors = [LeaderElector(provider, name, holder=f"node-{number}", **DURATIONS) for number in range(5)]
        for elector in electors:
            stack.enter_context(elector)
        stack.callback(server.resume)
        wait_until(lambda: is_led(electors), what="a first leader")
        server.pause()
        during = sample(electors, 2 * LEASE)
        assert not any(led for moment, led in during if moment > LEASE)
        server.resume()
        resumed, stalled = time.monotonic(), 0.0
        while not is_led(electors):
            before = time.monotonic()
            assert before < resumed + 30, server
            time.sleep(0.005)
            stalled += time.monotonic() - before - 0.005  # of this machine, not of an elector
        waited = time.monotonic() - resumed - stalled
        assert any(led for _, led in sample(electors, 2 * RETRY)), server
        wait_until(lambda: is_led(electors), what="a leader again, if a busy machine kept it from renewing")
    return waited


def test_no_leader_during_an_outage_and_one_soon_after(
    make_store: Callable[..., Store], listener: RecordingListener
) -> None:
    stores = [make_store(name) for name in STORES]
    with ThreadPoolExecutor(len(stores)) as threads:
        waited = dict(zip(STORES, threads.map(seconds_without_a_leader_after_an_outage, stores), strict=True))
    print({name: f"{seconds:.2f} s" for name, seconds in waited.items()})
    # The longest pause between two attempts, one read, and a busy machine.
    assert max(waited.values()) < LEASE + RETRY * 1.2 + 2, waited
    # Five nodes, two leases: no herd.
    attempts = Counter(event.lock_name for event in listener.of(ProviderFailed))
    assert all(count <= 5 * 2 * LEASE / RETRY for count in attempts.values()), attempts
