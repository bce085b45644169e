"""The faults of a simulation, as data. They are drawn before the simulation, so that faults can be dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

from tests.simulation.settings import settings_of

EVERY_NODE = -1
"""The node of a fault that meets all nodes, or only the store."""
HOLDER = -2
"""The node that leads, or holds a lock, when the fault begins."""

NETWORK = ("loss", "slow", "duplicate", "break", "partition", "hold", "outage", "stall", "error")
PROCESSES = ("crash", "pause", "deploy")
FAULTS: dict[str, str] = {
    "loss": "a part of the requests and replies is lost",
    "slow": "a part of the requests and replies is late",
    "duplicate": "a part of the requests arrives a second time, up to ten minutes later",
    "repeat": "the same, also of those that have a reply: drivers repeat commands by themselves",
    "break": "connections break while a reply is awaited",
    "partition": "nothing gets through, in one direction or in both",
    "hold": "nothing gets through until the end, and then everything",
    "error": "the store replies to a part of the requests with an error",
    "outage": "the store refuses connections",
    "stall": "the store carries nothing out until the end, and then everything",
    "crash": "the process is gone, and starts again at the end",
    "pause": "the process stands still (SIGSTOP, garbage collection, a migrated machine)",
    "deploy": "the process ends in order, and starts again at the end",
    "give up": "the callers of the operations that are under way give up",
    "jump": "the store's clock jumps",
    "drift": "the node's clock runs faster or slower, all the time",
    "force release": "an operator frees a lock by force",
    "take over": "an operator or a node takes a lock over",
    "delete": "an operator deletes lock records",
    "prune": "an operator prunes lock records",
    "demote": "an operator demotes the leader",
    "resign": "the leader resigns, or its on_started_leading raises",
}
OPERATORS = ("force release", "take over", "delete", "prune")


@dataclass(frozen=True, order=True)
class Fault:
    """A fault.

    :ivar at: seconds of virtual time.
    :ivar node: the number of a node, or :data:`EVERY_NODE`, or :data:`HOLDER`.
    :ivar size: a probability, seconds, or a factor, depending on the kind.
    """

    at: float
    kind: str
    node: int
    length: float = 0.0
    size: float = 0.0

    def __str__(self) -> str:
        where = {EVERY_NODE: "all nodes", HOLDER: "the holder"}.get(self.node, f"node {self.node}")
        return f"{self.at:.3f} s: {self.kind} ({where}) for {self.length:.3f} s, size {self.size:.4g}"


@dataclass(frozen=True)
class Schedule:
    """The faults of a simulation, and the pace of its users."""

    seed: int
    hours: float
    kind: str
    faults: tuple[Fault, ...]
    nodes: int = 3
    """How many nodes take part. Faults of other nodes do nothing."""
    store: str = "memory"
    """The store that supplies the programs: a name of ``stores.STORES``."""
    pace: int = 1
    """Factor for leases, intervals, faults and pauses between faults, relative to a dense schedule."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the timeline. ``node`` is the name of a node, "store", "operator" or "world"."""

    at: float
    node: str
    text: str

    def __str__(self) -> str:
        return f"{self.at:14.6f}  {self.node:10}  {self.text}"


@dataclass(frozen=True)
class Violation:
    """A promise that was broken.

    :ivar is_documented: this kind of schedule goes beyond a documented limit of the library.
    """

    rule: str
    at: float
    name: str
    text: str
    is_documented: bool = False


@dataclass
class Outcome:
    hours: float
    events: int = 0
    violations: list[Violation] = field(default_factory=list)
    """Violations of promises come first."""
    timeline: list[Entry] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def broken(self) -> list[Violation]:
        """The violations that no documented limit explains."""
        return [violation for violation in self.violations if not violation.is_documented]


class Mutant(Protocol):
    """A wrong copy of a part of the library, which replaces it while the block runs."""

    def applied(self) -> AbstractContextManager[None]: ...


OnProgress = Callable[[float, int], None]
"""Called after each judged window of time, with the hours and the events so far."""


@dataclass(frozen=True)
class Kind:
    """A kind of schedule.

    :ivar faults: the weight of each fault.
    :ivar per_hour: number of faults in an hour of a dense schedule.
    :ivar limit: the documented limit that the schedule exceeds; empty for a schedule within all limits.
    :ivar may_break: rules that may be broken beyond this limit.
    """

    text: str
    faults: dict[str, float]
    per_hour: float
    limit: str = ""
    may_break: frozenset[str] = frozenset()


_USUAL = dict.fromkeys((*NETWORK, *PROCESSES), 1.0) | {"deploy": 0.3, "outage": 0.6, "stall": 0.6, "pause": 2.0}
_LOCKS = _USUAL | {"give up": 3.0, "prune": 0.3, "drift": 0.1}
_ELECTIONS = _USUAL | {"resign": 2.5, "demote": 0.8, "take over": 0.8, "drift": 0.1, "prune": 0.2}
_RETRIES = {"break": 4.0, "duplicate": 4.0, "slow": 1.0, "pause": 1.0, "drift": 0.05}
_HANDOVERS = {
    "resign": 3.0, "demote": 2.0, "take over": 2.0, "partition": 2.0, "pause": 2.0, "slow": 1.0, "outage": 1.0,
}  # fmt: skip
FORWARD = frozenset({"overlap", "refused write", "minimum hold"})
"""Rules that a store breaks if its clock is set forward."""
BACK = frozenset({"crash bound", "grant lost"})
"""Rules that a store breaks if its clock is set back."""
_LEADERS = frozenset({"two leaders", "no leader", "works"})
"""If two nodes lead, the node with the older term may begin last: that breaks the rule "token"."""

KINDS: dict[str, Kind] = {
    "locks": Kind("workers with and without keep-alive", _LOCKS, 120),
    "retries": Kind("workers whose connections break, and whose requests arrive twice", _RETRIES, 150),
    "operators": Kind("the same, and operators who act by force", _LOCKS | dict.fromkeys(OPERATORS, 2.0), 140),
    "fire times": Kind("cron jobs with fire times, on nodes with wrong clocks", _LOCKS | {"give up": 9.0}, 120),
    "recoveries": Kind(
        "cron jobs whose runs are recovered when their holder dies", _LOCKS | {"crash": 4.0, "give up": 8.0}, 150
    ),
    "one-time tasks": Kind(
        "nodes that call run_once, whose tasks raise and whose holders die",
        _LOCKS | {"crash": 4.0, "give up": 4.0}, 150,
    ),
    "elections": Kind('electors with takeover="expired"', _ELECTIONS, 130),
    "handovers": Kind("electors that resign, are demoted and replaced all the time", _HANDOVERS, 120),
    "observed": Kind('electors with takeover="observed", and a clock that jumps', _ELECTIONS | {"jump": 6.0}, 150),
    "jumping locks": Kind(
        "workers, on a store whose clock jumps", _LOCKS | {"jump": 10.0}, 120,
        "a jump of the store's clock ends leases early, or late", FORWARD | BACK | {"own writes"},
    ),
    "jumping elections": Kind(
        'electors with takeover="expired", on a store whose clock jumps', _ELECTIONS | {"jump": 6.0}, 130,
        'a jump of the store\'s clock; takeover="observed" is for that', _LEADERS | {"token"},
    ),
    "drifting locks": Kind(
        "workers whose clocks are 5 % slow", _LOCKS, 120,
        "clocks may differ in speed by 1 %", FORWARD | BACK | {"trust window"},
    ),
    "drifting elections": Kind(
        "electors whose clocks are 25 % slow", _ELECTIONS, 130,
        "clocks may differ in speed by 10 %", _LEADERS,
    ),
    "repeating drivers": Kind(
        "workers whose drivers repeat commands by themselves, on a store that does not recognise it",
        {"repeat": 1.0, "break": 1.0, "pause": 1.0}, 30,
        "if a client repeats commands by itself, its store must recognise retries, as Redis does", FORWARD,
    ),
    "forced releases": Kind(
        "operators who act by force, judged as if nobody did",
        _LOCKS | {"force release": 6.0, "take over": 6.0}, 50,
        "a lock that is released or taken over by force has two holders until the first one notices",
        FORWARD | BACK,
    ),
}  # fmt: skip
LIMITS = tuple(kind for kind, facts in KINDS.items() if facts.limit)
"""Kinds that exceed a documented limit: they must break promises."""
NODES = {"fire times": 4, "recoveries": 4, "one-time tasks": 4}
DENSE = 1.0
"""Hours. Longer schedules are calm. So an hour has many events of each kind, and a year can be simulated."""
PACE = 8

_SIZES: dict[str, tuple[float, float]] = {
    "loss": (0.05, 0.7), "slow": (0.2, 1.0), "duplicate": (0.2, 1.0), "repeat": (0.5, 1.0), "break": (0.1, 0.8),
    "partition": (0.0, 3.0), "error": (0.1, 1.0), "drift": (-0.004, 0.004),
}  # fmt: skip
_DRIFTS = {"drifting locks": 0.95, "drifting elections": 0.75}
_FOR_ALL = ("outage", "stall", "jump")
_CYCLE, _TROUBLED = 720.0, 480.0
"""Seconds, times the pace. Faults arise only in the first part of each cycle. Then everything must work again."""
_AT_ANY_TIME = (*OPERATORS, "demote", "resign", "give up")


def draw(seed: int, hours: float, kind: str, *, store: str = "memory") -> Schedule:
    """Draw the schedule of one simulation. The same arguments always give the same schedule.

    A schedule of at most :data:`DENSE` hours is dense. In a longer schedule everything takes :data:`PACE` times as
    long.
    """
    pace = 1 if hours <= DENSE else PACE
    facts, random = KINDS[kind], Random(f"{kind}/{seed}")
    nodes, lease = NODES.get(kind, 3), settings_of(seed, kind, pace).lease
    weights_of = dict(facts.faults)
    if store != "memory" and "jump" in weights_of:
        weights_of.pop("prune", None)  # after a deletion, a clock that was set back gives smaller tokens
    kinds, weights = list(weights_of), list(weights_of.values())
    faults = []
    for _ in range(round(facts.per_hour * hours / pace)):
        fault = _draw_one(random, random.choices(kinds, weights)[0], hours, nodes, lease, pace)
        faults.append(fault)
        if fault.kind in ("slow", "loss", "duplicate", "break") and random.random() < 0.4:
            # These faults often show the effect of a message that was late or came twice.
            after = random.choice(("partition", "pause", "crash", "hold"))
            at = round(fault.at + fault.length * random.random(), 3)
            faults.append(replace(_draw_one(random, after, hours, nodes, lease, pace), at=at, node=fault.node))
    if kind in _DRIFTS:
        faults += [Fault(0.0, "drift", node, 0.0, _DRIFTS[kind] - 1) for node in range(nodes)]
    if kind == "observed":
        # A dead leader's lease that the store would keep for an hour, and then no fault that helps by chance.
        for cycle in range(0, round(hours * 3600), round(_CYCLE * pace)):
            at = cycle + _TROUBLED * pace - random.randrange(30)
            faults += [Fault(at, "pause", HOLDER, 2 * lease), Fault(at + 1.0, "jump", EVERY_NODE, 0.0, -3600.0)]
    if kind == "repeating drivers":
        faults.append(Fault(1.0, "repeat", EVERY_NODE, hours * 3600, 1.0))
    return Schedule(seed, hours, kind, tuple(sorted(faults)), nodes, store, pace)


def _draw_one(random: Random, kind: str, hours: float, nodes: int, lease: float, pace: int) -> Fault:
    at = random.uniform(0, hours * 3600)
    if kind not in _AT_ANY_TIME:
        at -= at % (_CYCLE * pace) * (1 - _TROUBLED / _CYCLE)
    node = EVERY_NODE if kind in _FOR_ALL else random.choice((HOLDER, random.randrange(nodes)))
    if kind in NETWORK and random.random() < 0.3:
        node = EVERY_NODE
    length = round(lease * 10 ** random.uniform(-1.0, 0.7), 3)  # a tenth of a lease to five leases
    size = round(random.uniform(*_SIZES.get(kind, (0.0, 1.0))), 4)
    if kind == "jump":
        size = round(random.choice((-1, 1)) * 10 ** random.uniform(-1, 4), 3)  # up to almost three hours
    if kind == "drift":
        at, node = 0.0, random.randrange(nodes)
    return Fault(round(at, 3), kind, node, length, size)
