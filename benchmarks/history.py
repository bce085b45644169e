"""The cost of run history: acquire and release with and without it, in turns, in one process."""

from __future__ import annotations

import random
from typing import Any

from benchmarks import cost, latency, wire
from benchmarks.contenders import Contender
from benchmarks.contenders.ours import Close, ProviderSession
from benchmarks.plan import Plan
from benchmarks.servers import RunningStore, Site
from shedlock_py import provider_from_url

KEPT = 50
WITH, WITHOUT = f"with history={KEPT}", "without history"


def keeping(site: Site) -> tuple[Any, Close]:
    url = site.url()
    provider: Any = provider_from_url(f"{url}{'&' if '?' in url else '?'}history={KEPT}")
    return provider, provider.close


class HistorySession(ProviderSession):
    """Each name has its full number of runs before the timing."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, keeping)
        self.known: set[str] = set()

    def take(self, name: str) -> bool:
        if name not in self.known:
            self.known.add(name)
            for _ in range(KEPT + 10):
                if not super().take(name):
                    return False
                self.give(name)
        return super().take(name)


def measure(store: RunningStore, plan: Plan, rng: random.Random) -> dict[str, dict[str, Any]]:
    name = store.site.store
    pair = [
        Contender(name, WITHOUT, "floor", ProviderSession, floor=WITHOUT),
        Contender(name, WITH, "us", HistorySession, floor=WITHOUT),
    ]
    found = latency.figures(latency.measure(store, pair, plan, rng))
    if store.pid is not None:
        for counted in (wire.measure(store, pair, plan), cost.measure(store, pair, plan)):
            for contender, figures in counted.items():
                found[contender] |= figures
    return found
