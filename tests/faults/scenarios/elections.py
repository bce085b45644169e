"""Leader election on a store whose clock jumps: the plain rule and ``takeover="observed"``."""

from __future__ import annotations

import random
import signal
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

from shedlock_py import provider_from_url
from tests.election.fleet import Fleet, now
from tests.faults.checker import Finding, Report
from tests.faults.clocked import ClockedStore, clocked
from tests.faults.registry import Budget, scenario
from tests.support.polling import let_pass
from tests.support.stores import Store

LEASE, DEADLINE, RETRY = 1.5, 1.0, 0.25
DURATIONS = {"lease_duration": f"{LEASE}s", "renew_deadline": f"{DEADLINE}s", "retry_period": f"{RETRY}s"}
NODES, ELECTIONS = 3, 8
TIMEOUT = 30.0
MINUTE, HOUR = 60.0, 3600.0
SIZES = (MINUTE, -MINUTE, HOUR, -HOUR)
"""Seconds by which the clock is set; later it is set right."""


@scenario(7, "clock jumps, plain election *")
def plain(store: Store, budget: Budget, seed: int) -> Report:
    """For contrast: the plain rule does not promise one leader. The report says how often and how long two led."""
    return elections(store, budget, seed, "expired")


@scenario(7, "clock jumps, observed election")
def observed(store: Store, budget: Budget, seed: int) -> Report:
    """Two nodes never lead, whatever the clock does. A dead leader is replaced though the clock was set back."""
    return elections(store, budget, seed, "observed")


@dataclass
class Figures:
    forward: int = 0
    back: int = 0
    two_leaders: int = 0
    worst: float = 0.0
    orphaned: int = 0
    """Elections in which the leader was killed and the clock set back."""
    followed: int = 0

    def __str__(self) -> str:
        return (
            f"{self.forward} elections with a clock set forward and {self.back} with one set back, by a minute or an "
            f"hour: two leaders {self.two_leaders} times, for up to {self.worst * 1000:.0f} ms. The leader died "
            f"and the clock was set back in {self.orphaned}; {self.followed} of them had a new leader before the clock "
            f"was right again"
        )


def elections(store: Store, budget: Budget, seed: int, takeover: str, sizes: Sequence[float] = SIZES) -> Report:
    report, figures = Report(), Figures()
    with clocked(store.name) as ours, tempfile.TemporaryDirectory(prefix="shedlock-elections-") as directory:
        url = _url(ours.store, is_async=store.is_async)
        for trial in budget.trials():
            choice = random.Random(seed + trial)
            path = Path(directory, str(trial))
            path.mkdir()
            names = [f"election-{uuid4().hex[:8]}" for _ in range(ELECTIONS)]
            ours.set(0.0)
            options = {**DURATIONS, "takeover": takeover}
            with Fleet(
                url, path, names, NODES, options=options, environment=ours.environment, is_async=store.is_async
            ) as fleet:
                fleet.wait_for_leaders(TIMEOUT)
                for size in in_order(choice.sample(sizes, len(sizes)), takeover):
                    for offset in (size, 0.0):
                        _jump(fleet, ours, offset, figures, choice, takeover)
                orphaned_at = choice.choice((MINUTE, HOUR)) if takeover == "observed" else HOUR
                report.takeovers += _orphans(fleet, ours, orphaned_at, figures, takeover)
                _judge(fleet, report, figures, takeover)
    report.notes.append(f"{'async' if store.is_async else 'sync'}: {figures}")
    return report


def in_order(sizes: Sequence[float], takeover: str) -> Sequence[float]:
    """Sort the jumps for the plain rule, which cannot replace a leader that dies just before the clock is set back.

    On a busy machine some leaders do. In this order a clock that is set forward shows at least as much as ever before.
    """
    return sizes if takeover == "observed" else sorted(sizes, key=lambda size: max(size, 0.0))


def _jump(
    fleet: Fleet, ours: ClockedStore, offset: float, figures: Figures, choice: random.Random, takeover: str
) -> None:
    """Set the clock at a random moment between two renewals, and wait until every elector has noticed."""
    let_pass(choice.uniform(0.0, RETRY))
    is_forward = offset > ours.clocks[0].offset
    if is_forward:
        figures.forward += ELECTIONS
    else:
        figures.back += ELECTIONS
    ours.set(offset)
    let_pass(3 * RETRY)
    if is_forward or takeover == "observed":
        fleet.wait_for_leaders(TIMEOUT)


def _orphans(fleet: Fleet, ours: ClockedStore, size: float, figures: Figures, takeover: str) -> list[float]:
    """Kill the leader and set the clock back. Return the seconds until others lead, by the observed rule only."""
    ours.set(size)
    let_pass(3 * RETRY)
    fleet.wait_for_leaders(TIMEOUT)
    victim = fleet.busiest()
    orphans = victim.leads()
    victim.send(signal.SIGKILL)
    died = now()
    ours.set(0.0)
    victim.process.wait(TIMEOUT)
    fleet.remove(victim)
    if takeover == "observed":
        fleet.wait_for_leaders(TIMEOUT)
    else:
        let_pass(3 * LEASE)
    figures.orphaned += len(orphans)
    figures.followed += len(orphans & set(fleet.leaders()))
    ours.set(size)
    fleet.wait_for_leaders(TIMEOUT)
    return fleet.successions(died, victim) if takeover == "observed" else []


def _judge(fleet: Fleet, report: Report, figures: Figures, takeover: str) -> None:
    report.trials += 1
    for one, other in fleet.overlaps():
        began = max(one.began, other.began)
        length = min(one.ended, other.ended) - began
        report.worst_overlap = max(report.worst_overlap, length)
        figures.worst = max(figures.worst, length)
        figures.two_leaders += 1
        if takeover == "observed":
            text = (
                f"{one.node} (term {one.term}, {one.began:.3f} to {one.ended:.3f}) and "
                f"{other.node} (term {other.term}, {other.began:.3f} to {other.ended:.3f}) "
                f"both led for {length * 1000:.3f} ms"
            )
            report.findings.append(Finding("two leaders", one.name, text, began))
    report.counts["reign"] += len(fleet.reigns())
    for name in fleet.names:  # in order of their begin; a term is greater than the term of every earlier reign
        for one, other in pairwise(reign for reign in fleet.reigns() if reign.name == name):
            if one.term >= other.term and one.node != other.node:
                text = f"{other.node} led with term {other.term} after {one.node} with {one.term}"
                report.findings.append(Finding("token", name, text, other.began))


def _url(store: Store, *, is_async: bool) -> str:
    """Return the URL for electors, with a separate lock table."""
    if store.name == "quorum":
        url = "redis+quorum://" + ",".join(f"{host}:{port}" for host, port in store.addresses)
        with closing(provider_from_url(url)) as quorum:  # type: ignore[type-var]  # all of these can be closed
            quorum.start_new_quorum()  # type: ignore[attr-defined]  # a quorum has it
        return url
    with closing(provider_from_url(store.sync().where(()))) as provider:  # type: ignore[type-var]  # likewise
        provider.create_schema()
    store.is_async = is_async
    return str(store.where(()))
