"""Negative controls: the checker must find each mutant, and nothing in the sound copy in the same circumstances."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from shedlock_py.testing.proxy import NO_DELAY, Delay, TcpProxy
from tests.faults.checker import Report, check
from tests.faults.fleet import Fleet
from tests.faults.report import Control
from tests.faults.rules import rules_of
from tests.faults.worker import Behaviour
from tests.support import stores
from tests.support.stores import Store

MOST_TRIALS = 20


@dataclass(frozen=True)
class Mutant:
    """A fault, and circumstances under which it breaks a promise."""

    variant: str
    fault: str
    circumstances: str
    rules: frozenset[str]
    """The rules that may find it."""
    behaviour: Behaviour
    sound: str = "Sound"
    seconds: float = 0.8
    slow_replies: Delay = NO_DELAY
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """For the last worker of the variant only."""
    kills: bool = False
    store: str = "redis"


_EXCLUSION = frozenset({"overlap", "token", "stale write", "refused write"})
_EAGER = Behaviour(at_most=0.5, work=(0.0, 0.02), pause=(0.0, 0.004))
_OVERRUNS = Behaviour(at_most=0.3, work=(0.1, 0.6), pause=(0.0, 0.02), extends=0.0, is_careless=True)
_LONG = Behaviour(at_most=0.4, work=(0.6, 0.8), pause=(0.0, 0.02), extends=0.0)
_SHORT = Behaviour(at_most=0.3, work=(0.0, 0.1), pause=(0.0, 0.02))
_KEPT = Behaviour(at_most=0.6, work=(1.2, 1.4), pause=(0.0, 0.02), keeps_alive=1.0)

MUTANTS = (
    Mutant("ReadThenWrite", "acquire reads, then writes", "eager workers", _EXCLUSION, _EAGER),
    Mutant("ReleasesAnybodys", "release without claim id", "tasks that outlive their leases", _EXCLUSION, _OVERRUNS),
    Mutant("ClientClock", "the client's wall clock decides", "one worker's clock is 2 s fast",
          _EXCLUSION | {"grant lost"}, _EAGER,
          arguments={"offset": 2.0}),
    Mutant("RestartingCounter", "a fencing counter that restarts", "eager workers", _EXCLUSION, _EAGER),
    Mutant("DeadlineFromReply", "the deadline is counted from the reply", "replies that take up to 0.3 s",
          frozenset({"overlap"}), _LONG, slow_replies=(0.0, 0.3), seconds=2.5),
    Mutant("StoppedKeepAlive", "one exception ends keep-alive", "every third extension fails",
          frozenset({"keep-alive"}),
          _KEPT, sound="Flaky", seconds=2.5),
    Mutant("NoMinimumHold", "a release ends the minimum hold", "short tasks", frozenset({"minimum hold"}),
          Behaviour(at_most=0.5, at_least=0.2, work=(0.0, 0.02), pause=(0.0, 0.02))),
    Mutant("HoldsTooLong", "the store holds three times the lease", "kill -9 of holders", frozenset({"crash bound"}),
          _SHORT, kills=True),
    Mutant("QuorumHoldsTooLong", "a quorum holds three times the lease", "kill -9 of holders",
          frozenset({"crash bound", "grant lost"}), _SHORT, sound="SoundQuorum", kills=True, store="quorum"),
    Mutant("UnconditionalEtcd", "etcd: writes do not compare versions", "eager workers", _EXCLUSION, _EAGER,
          sound="SoundEtcd", store="etcd"),
    Mutant("NeverNarrows", "a shorter extension is trusted longer", "extensions by a third of the lease",
          frozenset({"trust window"}),
          Behaviour(at_most=0.6, work=(0.0, 0.02), pause=(0.0, 0.02), extends=1.0, varies=1.0, lengths=(0.3, 0.4))),
)  # fmt: skip


def run(mutant: Mutant, store: Store, seed: int, *, is_mutated: bool = True) -> Report:
    variant = mutant.variant if is_mutated else mutant.sound
    with ExitStack() as stack:
        provider = f"tests.faults.mutants:{variant}"
        fleet = stack.enter_context(Fleet(store, size=0, behaviour=mutant.behaviour, seed=seed, provider=provider))
        via = []
        if mutant.slow_replies != NO_DELAY:
            proxy = stack.enter_context(TcpProxy(store.addresses[0]))
            proxy.delay(to_client=mutant.slow_replies)
            via.append(proxy.address)
        for _ in range(3):
            fleet.add(via=via)
        fleet.add(via=via, arguments=mutant.arguments if is_mutated else None)
        if mutant.kills:
            fleet.kill(fleet.wait_for_holder())
        fleet.run_for(mutant.seconds)
        return check(fleet.end(), rules_of(store))


def control(mutant: Mutant, store: Store, seed: int) -> Control:
    """Run the mutant until a rule finds its fault. A finding in the sound copy is reported as trouble."""
    sound = run(mutant, store, seed, is_mutated=False)
    if sound.findings:
        return Control(mutant.fault, mutant.circumstances, None, 1, f"the sound copy has {sound.findings[0]}")
    for trial in range(MOST_TRIALS):
        found = {finding.rule for finding in run(mutant, store, seed + trial).findings}
        if found & mutant.rules:
            return Control(mutant.fault, mutant.circumstances, ", ".join(sorted(found)), trial + 1)
    return Control(mutant.fault, mutant.circumstances, None, MOST_TRIALS)


def run_controls(seed: int, say: Callable[[str], None]) -> list[Control]:
    """Run all controls, on private servers."""
    results = []
    with ExitStack() as stack:
        opened = {
            name: stack.enter_context(stores.STORES[name].open()) for name in {mutant.store for mutant in MUTANTS}
        }
        for mutant in MUTANTS:
            result = control(mutant, opened[mutant.store], seed)
            results.append(result)
            verdict = f"found by: {result.caught_by}" if result.caught_by else f"NOT FOUND {result.trouble}"
            say(f"control  {mutant.fault:42} {verdict}")
    return results
