"""Network traffic: round trips and bytes of an operation, counted by a proxy, the same on every run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.plan import Plan
from benchmarks.servers import RunningStore
from benchmarks.subject import Subject
from shedlock_py.testing.proxy import TcpProxy

WARM_UP = 8
TIMES = 20


def measure(store: RunningStore, contenders: Sequence[Contender], plan: Plan) -> dict[str, dict[str, float]]:
    found = {}
    for contender in contenders:
        try:
            found[contender.name] = count(store, contender)
        except Exception as error:
            plan.drop(contender, "round trips", error)
    return found


def count(store: RunningStore, contender: Contender) -> dict[str, float]:
    """Return the traffic per acquire and release, and per skip. Connections opened for an operation count as well."""
    with TcpProxy(store.site.address) as proxy, asyncio.Runner() as runner:
        direct = Subject(contender, store.site, runner)
        subject = Subject(contender, store.site.via(proxy.address), runner)
        try:
            found = _count(proxy, "cycle", lambda times: subject.cycles([f"wire-{contender.slug}"] * times))
            if contender.skips:
                held = f"kept-{contender.slug}"
                direct.keep(held)
                found |= _count(proxy, "skip", lambda times: subject.refusals(held, times))
        finally:
            subject.close()
            direct.close()
        return found


def _count(proxy: TcpProxy, what: str, do: Any) -> dict[str, float]:
    do(WARM_UP)
    proxy.reset()
    do(TIMES)
    return {
        f"{what}_round_trips": proxy.round_trips / TIMES,
        f"{what}_bytes": (proxy.bytes_to_server + proxy.bytes_to_client) / TIMES,
        f"{what}_connections": proxy.connections / TIMES,
    }
