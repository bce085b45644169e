"""A claimant: the real programs of one acquisition, driven step by step.

Generators cannot be copied. So a claimant is what has happened to it, and each step is carried out by replaying that
with new programs. :class:`Claimants` remembers the outcome of each step, and takes two claimants with the same
fingerprint for one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from shedlock_py import Lease, LockRequest, ProviderError
from shedlock_py._program import Program
from shedlock_py.lease import Claim
from shedlock_py.providers.kit import StorePrograms, TimedOut, Undo
from shedlock_py.record import LockRecord
from tests.exhaustive.fingerprint import ClaimIds, Walk
from tests.exhaustive.times import NOW, STEP, STORE_NOW_US, TICK, HolderClock
from tests.simulation.stores.times import EPOCH

LOCK = "job"
CLAIMS = ("acquire", "take over")
FIRE_TIME = EPOCH + timedelta(microseconds=STORE_NOW_US)


class Event(NamedTuple):
    """What happens to a claimant. ``what``: "begins", "receives", "loses the connection of", "gives up"."""

    what: str
    operation: int
    """Its number."""
    kind: str = ""
    """Of an operation that begins: "acquire", "take over", "extend" or "release"."""
    reply: int = -1
    """The number of a reply that is received."""
    age: int = 0
    """How many ticks ago."""


class Sent(NamedTuple):
    """A command that a claimant has sent."""

    operation: int
    kind: str
    command: int
    """Its number."""
    is_awaited: bool
    before: int
    """Of a take-over: the token of the record that it has read; 0: there was none."""


class Effect(NamedTuple):
    """What a step of a claimant does."""

    claimant: int
    sent: tuple[Sent, ...] = ()
    is_skip: bool = False
    runs: bool = False
    """It has got a lease for the fire time, by an acquire."""
    broken: str = ""


@dataclass(frozen=True)
class Plan:
    """What a claimant does, in ticks."""

    at_most: int
    at_least: int = 0
    by_force: bool = False
    has_fire_time: bool = False
    """All claimants that have one have the same: one of them may run."""
    extensions: tuple[int, ...] = ()
    retries: bool = False
    """Whether the connection of an operation can break, so that its program sends the command again."""
    most_sent: int = 6
    """How many commands a take-over may send, two or three in each round, before the search leaves it alone."""


@dataclass
class _Operation:
    kind: str
    program: Any
    command: Any
    is_repeated: bool = False
    sent: int = 1
    before: int = 0


class Spy:
    """Notes which record a take-over replaces."""

    def __init__(self, programs: StorePrograms) -> None:
        self.programs = programs
        self.before = 0
        self._claim = programs.claim
        programs.claim = self.claim  # type: ignore[method-assign]  # of this object only

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> Program[Any, Any, int | None]:
        self.before = 0 if before is None else before.fencing_token or 0
        return self._claim(claim, before=before, force=force)


class Run:
    """The programs of a claimant, after its events so far."""

    def __init__(self, name: str, plan: Plan, spy: Spy, clock: HolderClock, replies: list[Any]) -> None:
        self._name, self._plan, self._spy, self._clock, self._replies = name, plan, spy, clock, replies
        self._programs = spy.programs
        self.operations: dict[int, _Operation] = {}
        """Those that wait for a reply."""
        self.lease: Lease | None = None
        self.begun = 0
        self.extended = 0
        self.is_over = False
        """It got no lease, or has released it."""
        self.commands: list[tuple[int, str, Any, bool, int]] = []
        """What the last event has sent: as :class:`Sent`, but with the command itself."""
        self.is_skip = False
        self.broken = ""

    def do(self, event: Event) -> None:
        self.commands = []
        if event.what == "begins":
            self.begun += 1
        self._clock.now = NOW - event.age * TICK + self.begun * STEP
        self._programs.new_claim_id = ClaimIds(self._name)
        if event.what == "begins":
            self._begin(event.operation, event.kind)
            return
        operation = self.operations[event.operation]
        match event.what:
            case "receives":
                self._step(event.operation, operation, lambda: operation.program.send(self._replies[event.reply]))
            case "loses the connection of":
                operation.is_repeated = True
                error: Exception = OSError("the connection broke")
                self._step(event.operation, operation, lambda: operation.program.throw(error), has_failed=True)
            case "gives up":
                error = TimedOut("a reply", sent=True)
                self._step(event.operation, operation, lambda: operation.program.throw(error), has_failed=True)

    def _begin(self, number: int, kind: str) -> None:
        plan, programs, lease = self._plan, self._programs, self.lease
        fire_time = FIRE_TIME if plan.has_fire_time else None
        request = LockRequest(LOCK, plan.at_most * TICK, plan.at_least * TICK, f"holder-{self._name}", fire_time)
        match kind:
            case "acquire":
                program: Any = programs.acquire(request)
            case "take over":
                program = programs.take_over(request)
            case "extend":
                assert lease is not None
                program = programs.extend(lease, timedelta(seconds=plan.extensions[self.extended] * TICK))
                self.extended += 1
            case _:
                assert lease is not None
                program = programs.release(lease)
                self.is_over = True
        operation = self.operations[number] = _Operation(kind, program, None)
        self._step(number, operation, lambda: next(program))

    def _step(self, number: int, operation: _Operation, go: Callable[[], Any], *, has_failed: bool = False) -> None:
        try:
            command = go()
            while isinstance(command, Undo):
                # Carried out in the background, whatever becomes of it: so it is under way for any time.
                self.commands.append((number, "undo", next(command.program), False, 0))
                command = operation.program.send(None)
        except StopIteration as stop:
            del self.operations[number]
            self._ended(operation.kind, stop.value, has_failed=has_failed)
        except ProviderError as error:
            del self.operations[number]
            self._failed(operation.kind, error, has_failed=has_failed)
        else:
            operation.sent += command is not operation.command
            operation.command = command
            if operation.kind == "take over":
                operation.before = self._spy.before
            self.commands.append((number, operation.kind, command, True, operation.before))

    def _ended(self, kind: str, result: Any, *, has_failed: bool) -> None:
        if has_failed:
            self.broken = f"I5: {kind} returned {result!r} although the store did not reply"
        if kind in CLAIMS:
            self.lease, self.is_skip, self.is_over = result, result is None, result is None

    def _failed(self, kind: str, error: ProviderError, *, has_failed: bool) -> None:
        if not has_failed:
            self.broken = f"I5: the store replied, and {kind} failed: {error}"
        if kind in CLAIMS:
            self.is_over = True

    def trusted_ticks(self, most: int) -> int:
        """At how many ticks from now on the lease is trusted."""
        if self.lease is None:
            return 0
        for ticks in range(most):
            self._clock.now = NOW + ticks * TICK + (self.begun + 1) * STEP
            if not self.lease.is_trusted():
                return ticks
        return most


@dataclass
class Claimant:
    """All that is known of claimants with one fingerprint, but for their commands under way."""

    me: int
    plan: Plan
    history: tuple[Event, ...]
    """One way to get there."""
    trust: int = 0
    token: int | None = None
    begins: tuple[str, ...] = ("acquire",)
    """The operations that it may begin."""
    waiting: tuple[tuple[int, str, bool], ...] = ()
    """The operations that wait for a reply: number, kind, and whether a broken connection lets it send again."""
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
        """The same claimant after a crash."""
        claimant = self.known[number]
        return self._intern((claimant.me, GONE), lambda: _gone(claimant.me, claimant.plan))

    def later(self, number: int) -> int:
        """The same claimant after a tick."""
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
        """The number of a reply."""
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
        runs = run.lease is not None and run.lease.fire_time is not None and event.kind == "" and claimant.token is None
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
            begins = ("take over",) if plan.by_force else ("acquire",)
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
