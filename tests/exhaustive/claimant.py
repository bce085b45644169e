"""A claimant: the real programs of one acquisition, and their history.

Generators cannot be copied. So a claimant is stored as its history, and each step replays the history with new
programs. :class:`Claimants` remembers the outcome of each step, and merges claimants with the same fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shedlock_py.providers.kit import StorePrograms
from tests.exhaustive.fingerprint import Walk
from tests.exhaustive.run import CLAIMS, Event, Plan, Run, Spy
from tests.exhaustive.times import TICK, HolderClock


class Sent(NamedTuple):
    """A command that a claimant has sent."""

    operation: int
    kind: str
    command: int
    """The number of the command."""
    is_awaited: bool
    before: int
    """For a take-over or a recovery: the token of the record that it has read, or 0 without a record."""


class Effect(NamedTuple):
    """The effect of a step of a claimant."""

    claimant: int
    sent: tuple[Sent, ...] = ()
    is_skip: bool = False
    runs: bool = False
    """It has got a lease for the fire time, by an acquire."""
    broken: str = ""


@dataclass
class Claimant:
    """The state that claimants with the same fingerprint share, except for their commands under way."""

    me: int
    plan: Plan
    history: tuple[Event, ...]
    """A history that leads there."""
    trust: int = 0
    token: int | None = None
    begins: tuple[str, ...] = ("acquire",)
    """The operations that it may begin."""
    waiting: tuple[tuple[int, str, bool], ...] = ()
    """The operations that wait for a reply: number, kind, and whether a broken connection makes it send again."""
    begun: int = 0
    is_gone: bool = False
    may_claim: bool = True
    """It may still send a command that claims the lock."""


GONE = "gone"


@dataclass
class Claimants:
    """All claimants that the search has met, by number."""

    programs: StorePrograms
    longest: int
    clock: HolderClock = field(default_factory=HolderClock)
    known: list[Claimant] = field(default_factory=list)
    replies: list[Any] = field(default_factory=list)
    commands: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.programs.clock = self.clock
        self.programs.timeout = 1000 * TICK  # the search decides when a claimant gives up
        self._spy = Spy(self.programs)
        self._numbers: dict[Hashable, int] = {}
        self._command_numbers: dict[Hashable, int] = {}
        self._reply_numbers: dict[str, int] = {}
        self._effects: dict[tuple[int, Event], Effect] = {}
        self._later: dict[int, int] = {}

    def new(self, me: int, plan: Plan) -> int:
        return self._number_of(me, plan, (), self._replay(me, plan, ()))

    def step(self, number: int, event: Event) -> Effect:
        effect = self._effects.get((number, event))
        if effect is None:
            effect = self._effects[number, event] = self._step(self.known[number], event)
        return effect

    def gone(self, number: int) -> int:
        """Return the same claimant after a crash."""
        claimant = self.known[number]
        return self._intern((claimant.me, GONE), lambda: _gone(claimant.me, claimant.plan))

    def later(self, number: int) -> int:
        """Return the same claimant after a tick."""
        later = self._later.get(number)
        if later is None:
            claimant = self.known[number]
            if claimant.is_gone:
                later = number
            else:
                history = tuple(event._replace(age=event.age + 1) for event in claimant.history)
                run = self._replay(claimant.me, claimant.plan, history)
                later = self._number_of(claimant.me, claimant.plan, history, run)
            self._later[number] = later
        return later

    def reply(self, reply: Any) -> int:
        """Return the number of a reply."""
        shown = repr(reply)
        if shown not in self._reply_numbers:
            self._reply_numbers[shown] = len(self.replies)
            self.replies.append(reply)
        return self._reply_numbers[shown]

    def _step(self, claimant: Claimant, event: Event) -> Effect:
        history = (*claimant.history, event)
        run = self._replay(claimant.me, claimant.plan, history)
        sent = tuple(
            Sent(operation, kind, self._command(command), is_awaited, before)
            for operation, kind, command, is_awaited, before in run.commands
        )
        plan = claimant.plan
        has_run = run.lease is not None and plan.has_fire_time and not plan.is_later
        is_of_acquire = not plan.by_force and not plan.recovers
        runs = has_run and is_of_acquire and event.kind == "" and claimant.token is None
        number = self._number_of(claimant.me, claimant.plan, history, run)
        return Effect(number, sent, run.is_skip, runs, run.broken)

    def _replay(self, me: int, plan: Plan, history: tuple[Event, ...]) -> Run:
        run = Run(str(me), plan, self._spy, self.clock, self.replies)
        for event in history:
            run.do(event)
        return run

    def _command(self, command: Any) -> int:
        fingerprint = Walk(self.longest).value(command)
        number = self._command_numbers.get(fingerprint)
        if number is None:
            number = self._command_numbers[fingerprint] = len(self.commands)
            self.commands.append(command)
        return number

    def _number_of(self, me: int, plan: Plan, history: tuple[Event, ...], run: Run) -> int:
        if run.is_over and not run.operations:
            return self._intern((me, GONE), lambda: _gone(me, plan))
        operations = {
            number: (each.kind, each.is_repeated, each.sent, each.before, each.program)
            for number, each in run.operations.items()
        }
        reached = (run.begun, run.extended, run.is_over, run.lease, operations)
        return self._intern((me, Walk(self.longest).value(reached)), lambda: self._claimant(me, plan, history, run))

    def _intern(self, key: Hashable, make: Callable[[], Claimant]) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.known)
            self.known.append(make())
        return number

    def _claimant(self, me: int, plan: Plan, history: tuple[Event, ...], run: Run) -> Claimant:
        begins: tuple[str, ...] = ()
        if not run.begun:
            begins = ("take over",) if plan.by_force else ("recover",) if plan.recovers else ("acquire",)
        elif run.lease is not None and not run.is_over:
            begins = ("extend", "release") if run.extended < len(plan.extensions) else ("release",)
        waiting = tuple(
            (number, operation.kind, plan.retries and not operation.is_repeated)
            for number, operation in run.operations.items()
            if operation.sent <= plan.most_sent
        )
        return Claimant(
            me,
            plan,
            history,
            trust=run.trusted_ticks(self.longest + 2),
            token=None if run.lease is None else run.lease.fencing_token,
            begins=begins,
            waiting=waiting,
            begun=run.begun,
            may_claim=not run.begun or any(each.kind in CLAIMS for each in run.operations.values()),
        )


def _gone(me: int, plan: Plan) -> Claimant:
    return Claimant(me, plan, (), begins=(), is_gone=True, may_claim=False)
