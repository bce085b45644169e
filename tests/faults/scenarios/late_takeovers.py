"""A take-over is sent twice, and the network delivers the first copy when the lock has passed on to somebody else."""

from __future__ import annotations

import random
import time
from contextlib import closing
from uuid import uuid4

from shedlock_py import LockProvider, LockRequest
from shedlock_py.testing.proxy import TcpProxy
from tests.faults.checker import Finding, Report
from tests.faults.registry import Budget, scenario
from tests.support.stores import Store

AT_MOST = "1m"


@scenario(10, "late copy of a take-over", stores=("postgres", "mariadb", "redis", "mongodb"), least=8)
def late_takeovers(store: Store, budget: Budget, seed: int) -> Report:
    with (
        TcpProxy(store.addresses[0]) as proxy,
        store.provider([proxy.address]) as provider,
        closing(store.open()) as others,
    ):
        provider.take_over(LockRequest(f"warm-{uuid4().hex[:8]}", AT_MOST))  # scripts are loaded, statements prepared
        return budget.total(lambda trial: one_trial(provider, others, proxy, random.Random(seed + trial)))


def one_trial(provider: LockProvider, others: LockProvider, proxy: TcpProxy, rng: random.Random) -> Report:
    """The record is held, free or absent when it is taken over; then the lock passes on, in one of three ways."""
    name = f"taken-{uuid4().hex[:12]}"
    request = LockRequest(name, AT_MOST)
    if rng.random() < 0.7:
        former = others.acquire(request)
        if former is not None and rng.random() < 0.5:
            others.release(former)
    proxy.hold(name, skip=1)  # the record is read first
    taken = provider.take_over(request)
    way = rng.choice(("released", "freed by force", "taken over"))
    if way == "released":
        provider.release(taken)
    elif way == "freed by force":
        others.force_release(name)
    later = others.take_over(request) if way == "taken over" else others.acquire(request)
    before = others.record(name)
    proxy.deliver()
    after = others.record(name)
    report = Report(trials=1)
    report.counts["late copy"] = 1
    if later is None or before is None or before.locked_by != later.locked_by:
        report.findings.append(
            Finding("grant lost", name, f"nobody could have it after it was {way}", time.monotonic())
        )
    elif after != before or others.extend(later, AT_MOST) is None:
        text = f"a late copy of a take-over took it from {before.locked_by} for {after and after.locked_by}"
        report.findings.append(Finding("overlap", name, text, time.monotonic()))
    return report
