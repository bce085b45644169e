"""Two stores in one process: one does not answer, and the other's leases are kept alive all the same."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from uuid import uuid4

from shedlock_py import Event, LeaseLost, LockExtended, attempt_async, configure, hold_async
from shedlock_py.testing.proxy import TcpProxy
from tests.faults.checker import Finding, Report
from tests.faults.history import monotonic
from tests.faults.registry import by_trial, scenario
from tests.support.stores import WITH_NETWORK, Store

POLLERS = 30
LEASE = 0.9
LEASES = 3


@scenario(15, "async code: a silent store beside a healthy one", stores=WITH_NETWORK, kinds=("sync",))
@by_trial
def silent_neighbour(store: Store, seed: int, number: int) -> Report:
    """Thirty tasks poll through proxies that pass nothing; a lease on the same store, reached directly, is kept alive.

    Sync providers under asyncio: each has threads of its own.
    """
    events: list[Event] = []
    name = f"neighbour-{uuid4().hex[:8]}"
    with ExitStack() as stack:
        logging.disable()  # each poller that fails is a line
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
            async with hold_async(name, lock_at_most_for=LEASE, keep_alive=True, provider=healthy) as lease:
                assert lease is not None
                pollers = [asyncio.create_task(poll()) for _ in range(POLLERS)]
                await asyncio.sleep(LEASES * LEASE)
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
