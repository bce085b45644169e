"""Processes that take part in an election, and the judge. They run the real election programs in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from shedlock_py import LockRecord, ProviderError
from shedlock_py.election.demotion import Demotion, leader_of
from shedlock_py.election.program import PENDING, Command, Do, Election, Intent, Term, Wait
from shedlock_py.election.settings import ElectionSettings
from shedlock_py.events import Event, LeadershipStarted, LeadershipStopped
from shedlock_py.runtime.program import drive_async
from tests.simulation.provider import SimulatedProvider
from tests.simulation.schedule import Violation
from tests.simulation.world import Process, Signal, World

NAME = "election"
ROUNDING = 1e-5
"""Seconds, for sums of floating-point numbers."""
_INFINITY = float("inf")


class Contest:
    """An election as an observer sees it: the leader, the working nodes, and broken promises."""

    def __init__(self, world: World, calm_since: Callable[[float], float], may_break: frozenset[str]) -> None:
        """:param calm_since: returns when the last fault ended before a moment; infinity: a fault lasts."""
        self._may_break = may_break
        self._world = world
        self._calm_since = calm_since
        self.electors: list[Elector] = []
        self.violations: list[Violation] = []
        self._resting: dict[str, tuple[float, int]] = {}
        """By demoted node: the end of its cooldown, and the token of the demotion."""
        self.longest_gap = 0.0
        """Seconds within which a leader is elected while no fault happens."""
        self._last_term = 0
        self._led_at = 0.0
        self._seen: tuple[str, ...] = ()

    def leader(self) -> int | None:
        """The number of the leading node."""
        return next((each.process.number for each in self.electors if each.election.is_leader()), None)

    def demoted(self, machine: str, cooldown: float, token: int) -> None:
        """Note that a node was demoted, and will see it."""
        self._resting[machine] = self._world.now + cooldown, token

    def takes_over(self, machine: str) -> None:
        self._resting.pop(machine, None)

    def replaced(self) -> None:
        """The record was taken over: a node that has not read its demotion there will never read it."""
        read = {elector.process.machine: elector.demoted_in for elector in self.electors}
        self._resting = {
            machine: (until, demotion)
            for machine, (until, demotion) in self._resting.items()
            if read.get(machine) == demotion
        }

    def check(self) -> None:
        """Check after each step of a node that at most one node leads, and no node leads for too long."""
        now = self._world.now
        leading = [elector for elector in self.electors if elector.election.is_leader()]
        leaders = tuple([elector.name for elector in leading])
        for elector in leading:
            if elector.may_lead_until + ROUNDING < now:
                self._violated("trust window", f"{elector.name} leads, {elector.overtime(now)}")
                elector.may_lead_until = _INFINITY  # reported once
            if elector.failed_in is not None and elector.failed_in is elector.election.term:
                self._violated("idle leader", f"{elector.name} leads, although on_started_leading has raised")
                elector.failed_in = None  # reported once
        if leaders:
            self._led_at = now
            if len(leaders) > 1 and leaders != self._seen:
                self._violated("two leaders", f"{' and '.join(leaders)} lead at the same time")
        elif self._led_at + self.longest_gap < now and self._calm_since(now) + self.longest_gap < now:
            self._violated("no leader", f"for {now - self._led_at:.0f} s, although nothing goes wrong")
            self._led_at = now
        self._seen = leaders

    def started(self, elector: Elector, term: int) -> None:
        if term <= self._last_term:
            self._violated("token", f"{elector.name} leads in term {term}, after term {self._last_term}")
        self._last_term = max(term, self._last_term)
        until, demotion = self._resting.get(elector.process.machine, (0.0, 0))
        if self._world.now < until and term > demotion:  # a former term may begin before the node has seen the demotion
            self._violated("demotion", f"{elector.name} leads, and was demoted until {until:.3f} s")
        for other in self.electors:
            if other is not elector and other.calls and self._world.now < other.works_until:
                self._violated("works", f"{elector.name} leads, and {other.name} still works in its callbacks")
        self.check()

    def requested(self, elector: Elector, operation: str) -> None:
        """Check that a demoted node is not a candidate during its cooldown."""
        if operation == "acquire" and elector.process.clock() + ROUNDING < elector.rests_until:
            self._violated("demotion", f"{elector.name} is a candidate, although it was demoted for longer")

    def _violated(self, rule: str, text: str) -> None:
        self._world.log.add(self._world.now, "world", "VIOLATION {}: {}", rule, text)
        self.violations.append(Violation(rule, self._world.now, NAME, text, rule in self._may_break))


class Elector:
    """The elector of one process, like ``LeaderElector`` in threads."""

    def __init__(
        self,
        process: Process,
        provider: SimulatedProvider,
        contest: Contest,
        settings: dict[str, Any],
        is_calm: Callable[[int, float, float], bool],
    ) -> None:
        self._is_calm = is_calm
        self.process = process
        self.name = process.name
        self.provider = provider
        self.contest = contest
        self.settings = ElectionSettings.parse(NAME, holder=process.machine, **settings)
        self.calls = 0
        self.works_until = 0.0
        """In virtual time: how long the lease protects the callbacks of a leader that has resigned."""
        self.may_lead_until = -_INFINITY
        """In virtual time: ``renew_deadline`` after it sent the last request for its lease that the store confirmed."""
        self.rests_until = -_INFINITY
        """By the node's clock: the end of its cooldown, which it has read in the record."""
        self._has_led = False
        """Whether the node has led with its last lease."""
        self.demoted_in = 0
        """The term of the last demotion of this node that it has read."""
        self.failed_in: Term | None = None
        """The last term whose ``on_started_leading`` raised."""
        self._last_read = ""
        self._is_woken = False
        self._waits: Signal | None = None
        self._log = process.world.log
        self.election = Election(
            self.settings, process.clock, process.random.random, self._notify, self._call, lambda: self.calls > 0
        )

    async def run(self) -> None:
        await drive_async(self.election.run(), self._execute)
        self.election.is_over = True
        self._add("has left the election")

    def request(self, intent: Intent) -> None:
        self._add("is to " + intent.replace("_", " "))
        self.election.intents.add(intent)
        if intent == "take_over":
            self.contest.takes_over(self.process.machine)
        self._wake()

    def fail(self) -> None:
        """Make ``on_started_leading`` raise, if this node leads."""
        term = self.election.term
        if term is None or not term.is_leading:
            return
        self._add("on_started_leading raises")
        self.election.fail(term, RuntimeError("of the simulation"))
        self.failed_in = term
        self._wake()

    def die(self) -> None:
        """End the process: nothing reads its election object any more."""
        self.election.is_over = True
        self.calls = 0

    async def demote(self, cooldown: float) -> None:
        """Demote the leader like ``Elector.demote``."""
        try:
            former: LockRecord | None = leader_of(await self.provider.record(NAME))
            if former is not None:
                demotion = Demotion(former.holder, timedelta(seconds=cooldown))
                lease = await self.provider.take_over(demotion.request(NAME, self.settings.durations.renew_deadline))
                self.contest.replaced()
                self._add(f"has demoted {former.holder}")
                self._demoted(former.holder, cooldown, lease.fencing_token or 0)
        except ProviderError:
            pass

    def _demoted(self, machine: str, cooldown: float, token: int) -> None:
        now, settings = self.process.world.now, self.settings
        sees_it = (settings.durations.renew_deadline + 3 * settings.durations.retry_period).total_seconds()
        demoted = next((each for each in self.contest.electors if each.process.machine == machine), None)
        if demoted is None or "take_over" in demoted.election.intents:
            return  # a take-over that was requested before is by force, too
        if self._is_calm(demoted.process.number, now - sees_it, now + sees_it):
            self.contest.demoted(machine, cooldown * 0.99, token)

    # The election program

    async def _execute(self, command: Command) -> Any:
        self.contest.check()
        match command:
            case Wait(until):
                if not self._is_woken:
                    self._waits = Signal()
                    self.process.call_at(until, self._waits.set)
                    await self._waits
                    self._waits = None
                self._is_woken = False
                return None
            case Do(operation, args, seconds):
                return await self._do(operation, args, seconds)

    async def _do(self, operation: str, args: tuple[Any, ...], seconds: float | None) -> Any:
        self.contest.requested(self, operation)
        carried_out = getattr(self.provider, operation)(*args)
        sent_at = self.process.clock()
        if seconds is None:
            reply = await carried_out
        else:
            task = self.process.spawn(carried_out)
            if not await self.process.first(task.ended, seconds):
                self._add(f"{operation}: no reply yet")
                return PENDING
            reply = await task.ended
        if operation != "record":
            self._add(f"{operation}: {'done' if reply else 'refused'}")
        if operation == "take_over":
            self.contest.replaced()
        if operation in ("acquire", "take_over", "extend") and reply is not None:
            deadline = sent_at + self.settings.durations.renew_deadline.total_seconds()
            self.may_lead_until = self.process.to_world(deadline)
            self._has_led = self._has_led and operation == "extend"
            if self._has_led:
                self.works_until = self.may_lead_until  # a new lease does not protect the callbacks of a former lease
            self.process.world.at(self.may_lead_until + 2 * ROUNDING, self.contest.check)
        if operation == "record" and reply is not None:
            self._read(reply)
        return reply

    def _read(self, record: LockRecord) -> None:
        is_new, self._last_read = record.locked_by != self._last_read, record.locked_by
        demotion = Demotion.from_record(record) if record.is_held and is_new else None
        if demotion is not None and demotion.leader == self.process.machine:
            self.demoted_in = record.fencing_token or 0
            self.rests_until = self.process.clock() + demotion.cooldown.total_seconds()

    def overtime(self, now: float) -> str:
        seconds = now - self.may_lead_until
        return f"{seconds:.4f} s longer than renew_deadline after the last request that the store confirmed"

    def _wake(self) -> None:
        self._is_woken = True
        if self._waits is not None:
            self._waits.set()

    def _notify(self, event: Event) -> None:
        self._log.counts[type(event).__name__] += 1
        match event:
            case LeadershipStarted(_, _, term):
                self._add(f"leads, term {term}")
                self._has_led, self.works_until = True, self.may_lead_until
                self.contest.started(self, term or 0)
                self._call()
            case LeadershipStopped(_, _, _, reason):
                self._add(f"leads no more: {reason}")
                if reason != "resigned":
                    self.works_until = 0.0
                self._call()

    def _call(self) -> None:
        """Call the callbacks, which take some time."""
        self.calls += 1
        dice = self.process.dice()
        seconds = self.settings.durations.renew_deadline.total_seconds() * dice() ** 3
        self.process.call_at(self.process.clock() + seconds, partial(self._return, dice))

    def _return(self, _: object) -> None:
        self.calls -= 1
        self._wake()

    def _add(self, text: str) -> None:
        self._log.add(self.process.world.now, self.name, "{}", text)
