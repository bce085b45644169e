"""The network before the store is cut, one way or both ways, loses replies, is slow, delivers late, or is silent."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from uuid import uuid4

from shedlock_py import (
    Event,
    LeaseLost,
    LockExtended,
    LockProvider,
    LockRequest,
    attempt_async,
    configure,
    hold_async,
)
from shedlock_py.testing.proxy import TcpProxy
from tests.faults.checker import Finding, Report, check
from tests.faults.fleet import Fleet
from tests.faults.history import monotonic
from tests.faults.registry import Budget, Run, by_trial, scenario
from tests.faults.rules import GRACE, LATE, rules_of
from tests.faults.worker import Behaviour
from tests.support.stores import ONE_SERVER, STORES, WITH_NETWORK, Store

LEASE = 0.6
OTHERS = Behaviour(at_most=LEASE, work=(0.0, 0.05), pause=(0.03, 0.1))

# Cut


def _cut_and_healed(store: Store, seed: int, number: int, *, cut_off: Callable[[TcpProxy], None]) -> Report:
    """Cut a holder off until others have had the lock. Then it gets the lock again."""
    victims = Behaviour(at_most=LEASE, work=(0.3, 1.2), pause=(0.0, 0.02), extends=0.5, keeps_alive=0.5)
    arrives = number % 2 == 0 and cut_off is not _close  # requests that were held back are passed on in the end
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(address)) for address in store.addresses]
        fleet = stack.enter_context(Fleet(store, size=2, behaviour=OTHERS, seed=seed))
        victim = fleet.add(via=[proxy.address for proxy in proxies], behaviour=victims)
        fleet.wait_until_working(victim)
        fleet.run_for(fleet.random.uniform(0.0, 0.3))
        fleet.wait_until_trusting(victim, LEASE / 6)
        with fleet.disturbed(victim, [*(proxy.address for proxy in proxies), *store.addresses]):
            with fleet.marked("cut", victim):
                for proxy in proxies:
                    cut_off(proxy)
            fleet.wait_for_grants(3, but=victim.name)
            with fleet.marked("healed", victim):
                for proxy in proxies:
                    if not arrives:
                        proxy.cut()
                    proxy.resume()
                    proxy.accept()
        fleet.wait_for_grants(1, worker=victim)
        fleet.run_for(GRACE + LEASE)  # the last requests are over, and no skip is excused any more
        fleet.wait_for_grants(2)
        return check(fleet.end(), rules_of(store))


def _close(proxy: TcpProxy) -> None:
    proxy.refuse()
    proxy.cut()


def _cut(name: str, cut_off: Callable[[TcpProxy], None]) -> Run:
    return scenario(4, name, stores=WITH_NETWORK, least=2)(by_trial(partial(_cut_and_healed, cut_off=cut_off)))


both_ways = _cut("network cut, both ways", TcpProxy.stall)
to_the_store = _cut("network cut, to the store", lambda proxy: proxy.stall(to_client=False))
to_the_worker = _cut("network cut, to the worker", lambda proxy: proxy.stall(to_server=False))
closed = _cut("connections closed and refused", _close)

# The store carries out the request, and its reply is lost

LOSSES_PER_TRIAL = 4


def _reply_lost(store: Store, seed: int, number: int, *, operation: str) -> Report:
    """Lose replies to a worker's ``operation``: once, so that a retry helps, or at every retry."""
    extends = {"extend": 1.0, "release": 0.0}.get(operation, 0.5)
    victims = Behaviour(at_most=LEASE, at_least=0.05, work=(0.02, 0.15), pause=(0.0, 0.02), extends=extends)
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(address)) for address in store.addresses]
        fleet = stack.enter_context(Fleet(store, size=2, behaviour=replace(OTHERS, pause=(0.02, 0.08)), seed=seed))
        victim = fleet.add(via=[proxy.address for proxy in proxies], behaviour=victims)
        fleet.wait_for_grants(1, worker=victim)
        for _ in range(LOSSES_PER_TRIAL):
            fleet.wait_until_working(victim, is_working=operation != "acquire")
            times = fleet.random.choice((1, 1, 2, 3))
            hit = proxies if fleet.random.random() < 0.5 else [fleet.random.choice(proxies)]
            skip = fleet.random.randint(0, store.reads_to_acquire) if operation == "acquire" else 0
            for proxy in hit:
                proxy.drop_replies_to(store.in_write(fleet.names[0]), times, skip=skip)
            fleet.wait(lambda hit=hit: not any(proxy.drops_left for proxy in hit), "the replies lost")  # type: ignore[misc]  # bound
        fleet.wait_for_grants(2, worker=victim)
        report = check(fleet.end(), rules_of(store))
        report.counts["reply lost"] = sum(proxy.replies_dropped for proxy in proxies)
        return report


reply_to_acquire, reply_to_extend, reply_to_release = (
    scenario(5, f"reply to {operation} lost", stores=WITH_NETWORK, least=3)(
        by_trial(partial(_reply_lost, operation=operation))
    )
    for operation in ("acquire", "extend", "release")
)

# Slow

SHARES = (2.0, 1.0, 0.25)
"""The longest round trip, in leases. Trials use these values in rotation."""
SECONDS = 3.0


@scenario(6, "latency up to twice the lease", stores=WITH_NETWORK, least=3)
@by_trial
def slow(store: Store, seed: int, number: int) -> Report:
    """Every worker has a slow proxy. In the end the network is quick again."""
    behaviour = Behaviour(at_most=LEASE, work=(0.0, 0.4), pause=(0.0, 0.05), extends=0.5, keeps_alive=0.3, forgets=0.1)
    longest = SHARES[number % len(SHARES)] * LEASE / 2  # in each direction
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet(store, size=0, behaviour=behaviour, seed=seed))
        proxies = []
        for _ in range(3):
            own = [stack.enter_context(TcpProxy(address)) for address in store.addresses]
            worker = fleet.add(via=[proxy.address for proxy in own])
            fleet.wait_for_grants(1, worker=worker)  # connected
            proxies += own
        for proxy in proxies:
            proxy.delay(to_server=(0.0, longest), to_client=(0.0, longest))
        fleet.run_for(SECONDS)
        for proxy in proxies:
            proxy.delay()
        fleet.wait_for_grants(3)
        return check(fleet.end(), rules_of(store, late=2 * longest + LATE))


# A take-over is sent twice, and the first copy arrives after the lock has passed to another holder

AT_MOST = "1m"


@scenario(
    10,
    "late copy of a take-over",
    stores=tuple(name for name in ONE_SERVER if STORES[name].has_late_copies),
    least=8,
)
def late_takeovers(store: Store, budget: Budget, seed: int) -> Report:
    with (
        TcpProxy(store.addresses[0]) as proxy,
        store.provider([proxy.address]) as provider,
        closing(store.open()) as others,
    ):
        provider.take_over(LockRequest(f"warm-{uuid4().hex[:8]}", AT_MOST))  # scripts are loaded, statements prepared
        return budget.total(lambda trial: one_trial(store, provider, others, proxy, random.Random(seed + trial)))


def one_trial(
    store: Store, provider: LockProvider, others: LockProvider, proxy: TcpProxy, rng: random.Random
) -> Report:
    """The take-over finds the record held, free or absent. Then the lock passes on, in one of three ways."""
    name = f"taken-{uuid4().hex[:12]}"
    request = LockRequest(name, AT_MOST)
    if rng.random() < 0.7:
        former = others.acquire(request)
        if former is not None and rng.random() < 0.5:
            others.release(former)
    proxy.hold(store.in_write(name), skip=store.reads_to_take_over)
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


# Two stores in one process: one does not reply, and the other store's leases are kept alive all the same

POLLERS, KEPT = 30, 2.0
LEASES_PER_TRIAL = 3


@scenario(15, "async code: a silent store beside a healthy one", stores=WITH_NETWORK, kinds=("sync",))
@by_trial
def silent_neighbour(store: Store, seed: int, number: int) -> Report:
    """Thirty tasks poll through silent proxies. A lease on the same store, reached directly, is kept alive.

    Sync providers under asyncio: each has its own threads.
    """
    events: list[Event] = []
    name = f"neighbour-{uuid4().hex[:8]}"
    with ExitStack() as stack:
        logging.disable()  # each failed poll logs a line
        stack.callback(logging.disable, logging.NOTSET)
        stack.enter_context(configure(listeners=[events.append]))
        proxies = [stack.enter_context(TcpProxy(address)) for address in store.addresses]
        silent = stack.enter_context(store.provider([proxy.address for proxy in proxies]))
        healthy = stack.enter_context(store.provider())

        async def poll() -> None:
            await attempt_async(f"{name}-polled", lambda: asyncio.sleep(0), lock_at_most_for="1m", provider=silent)

        async def main() -> Report:
            await poll()  # connected
            for proxy in proxies:
                proxy.stall()
            began = monotonic()
            async with hold_async(name, lock_at_most_for=KEPT, keep_alive=True, provider=healthy) as lease:
                assert lease is not None
                pollers = [asyncio.create_task(poll()) for _ in range(POLLERS)]
                await asyncio.sleep(LEASES_PER_TRIAL * KEPT)
                is_trusted = lease.is_trusted()
                still_polling = sum(not poller.done() for poller in pollers)
            for proxy in proxies:
                proxy.resume()
            await asyncio.gather(*pollers, return_exceptions=True)
            report = Report(trials=1)
            report.counts["heartbeat"] = sum(isinstance(event, LockExtended) for event in events)
            report.counts["poller without an answer"] = still_polling
            lost = [event.reason for event in events if isinstance(event, LeaseLost) and event.lock_name == name]
            if lost or not is_trusted:
                report.findings.append(Finding("neighbour", name, f"the healthy store's lease was lost: {lost}", began))
            return report

        return asyncio.run(main())
