"""Front ends of HTTP stores that send a wrong ``Date``, or the reply to a different request.

While a replica trusts its lease, no other replica gets the lock.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from shedlock_py import Lease, LockRequest, ProviderError
from shedlock_py.testing.proxy import Address
from tests.faults.checker import Finding, Report
from tests.faults.registry import Run, by_trial, scenario
from tests.support.dates import OneReplyWrong
from tests.support.shifted_replies import ShiftingProxy
from tests.support.stores import Store

REPLICAS, NAMES = 3, 2
ATTEMPTS_PER_TRIAL = 40
LEASE = "20s"
"""Shorter than the error of the clock."""

OddProxy = Callable[[Address, int], OneReplyWrong | ShiftingProxy]


class Holders:
    """The replicas' own knowledge of who holds which lock."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._leases: dict[str, Lease] = {}
        self._mutex = threading.Lock()

    def add(self, lease: Lease) -> None:
        with self._mutex:
            other = self._leases.get(lease.name)
            self._leases[lease.name] = lease
            self._report.counts["acquire granted"] += 1
            if other is not None and other.is_trusted() and lease.is_trusted():
                text = f"{lease.locked_by} got the lock of {other.locked_by}"
                self._report.findings.append(Finding("overlap", lease.name, text, time.monotonic()))

    def remove(self, lease: Lease) -> None:
        with self._mutex:
            if self._leases.get(lease.name) is lease:
                del self._leases[lease.name]


def one_trial(store: Store, seed: int, number: int = 0, *, proxy_of: OddProxy, attempts: int | None = None) -> Report:
    report = Report(trials=1)
    holders = Holders(report)
    with ExitStack() as stack:
        proxies = [proxy_of(store.addresses[0], seed + n) for n in range(REPLICAS)]
        for proxy in proxies:
            stack.enter_context(proxy)
        providers = [stack.enter_context(store.provider([proxy.address])) for proxy in proxies]
        threads = [
            threading.Thread(
                target=_replica,
                args=(provider, holders, random.Random(seed + n), attempts or ATTEMPTS_PER_TRIAL, report),
            )
            for n, provider in enumerate(providers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report.counts["odd reply"] = sum(proxy.odd for proxy in proxies)
    return report


def _replica(provider: Any, holders: Holders, randomness: random.Random, attempts: int, report: Report) -> None:
    for _ in range(attempts):
        name = f"odd-{randomness.randrange(NAMES)}"
        try:
            lease = provider.acquire(LockRequest(name, LEASE))
        except ProviderError:
            report.counts["acquire error"] += 1
            lease = None
        if lease is None:
            time.sleep(randomness.uniform(0.0, 0.01))
            continue
        holders.add(lease)
        with suppress(ProviderError):
            for _ in range(randomness.randrange(3)):
                if provider.extend(lease, LEASE) is None:
                    break
                time.sleep(randomness.uniform(0.0, 0.01))
        holders.remove(lease)
        with suppress(ProviderError):
            provider.release(lease)


def _odd(name: str, proxy_of: OddProxy, *, stores: tuple[str, ...]) -> Run:
    return scenario(22, name, stores=stores, least=10)(by_trial(partial(one_trial, proxy_of=proxy_of)))


wrong_date = _odd(
    "one reply has a Date that is a minute off",
    lambda address, seed: OneReplyWrong(address, 60.0, seed),
    stores=("etcd", "s3", "azblob", "kubernetes", "dynamodb"),
)
other_reply = _odd(
    "replies to other requests",
    lambda address, seed: ShiftingProxy(address, 0.1, seed),
    stores=("etcd", "kubernetes"),
)
