"""All states that a few claimants and one lock record can reach, breadth first: the first violation is the shortest.

The claimants are the real programs, and the store runs the real commands. Each command is carried out at any time, in
any order, or never. Its reply may be lost, and the program may send it again. Claimants crash, or are stopped for any
time: all of them may be stopped while time goes by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.exhaustive.claimant import Claimants, Effect
from tests.exhaustive.promises import Observed, Promises
from tests.exhaustive.records import NOBODY, Record, Records
from tests.exhaustive.run import CLAIMS, Event, Plan
from tests.exhaustive.times import STEP_US
from tests.simulation.stores import ModelStore

UNAWAITED = -1


class Message(NamedTuple):
    """A command that is under way, and may stay so for any time."""

    me: int
    operation: int
    """The operation that waits for the reply; none if its connection is gone."""
    kind: str
    command: int
    """The number of the command."""
    before: int = 0
    """For a take-over or a recovery: the token of the record that it has read."""


class Reply(NamedTuple):
    """A reply that is on its way back."""

    me: int
    operation: int
    reply: int
    """The number of the reply."""
    is_urgent: bool
    """Of an acquire or a recovery: the store carried the command out while the lock was held for this claimant."""


class State(NamedTuple):
    record: Record
    claimants: tuple[int, ...]
    """The numbers of the claimants."""
    messages: tuple[Message, ...]
    replies: tuple[Reply, ...]
    observed: Observed
    by_hand: tuple[str, ...] = ()
    """Remaining actions of an operator: "force release", "delete"."""
    grants: int = 0
    """How often the lock was granted."""


Step = tuple[str, State, str]
"""The event, the state after it, and the broken promise, or ""."""


class Violation(Exception):
    """A broken promise. The text is the shortest way there, step by step."""


@dataclass
class Search:
    """The search on one store. ``states`` and ``executions`` are its figures."""

    name: str
    store: ModelStore
    plans: tuple[Plan, ...]
    by_hand: tuple[str, ...] = ()
    clock_stands_still: bool = False
    states: int = 0
    _dropped: dict[tuple[int, str, int], State] = field(default_factory=dict)
    """Messages that were taken out because they have lost their effect. By message: a state with it."""

    def __post_init__(self) -> None:
        longest = max(max(plan.at_most, plan.at_least, *plan.extensions, 0) for plan in self.plans)
        self.claimants = Claimants(self.store.programs, longest)
        step_us = 0 if self.clock_stands_still else STEP_US
        self.records = Records(self.name, self.store, self.claimants, step_us)
        self.promises = Promises(self.plans)
        self._recovers = any(plan.recovers for plan in self.plans)

    def start(self) -> State:
        claimants = tuple(self.claimants.new(me, plan) for me, plan in enumerate(self.plans))
        return State(self.records.none, claimants, (), (), Observed.at_start(len(self.plans)), self.by_hand)

    def check(self) -> int:
        """Return the number of states.

        :raises Violation: a promise is broken.
        """
        start = self.start()
        came_from: dict[State, tuple[State, str] | None] = {start: None}
        todo = deque([start])
        while todo:
            state = todo.popleft()
            for label, following, broken in self.steps(state):
                broken = broken or self._what_is_broken(following)
                if broken:
                    raise Violation("\n".join([*_way(came_from, state), f"{label} — {broken}"]))
                following = self._essence(following)
                if following not in came_from:
                    came_from[following] = (state, label)
                    todo.append(following)
        self._check_dropped(came_from)
        self.states = len(came_from)
        return self.states

    def _what_is_broken(self, state: State) -> str:
        known = self.claimants.known
        claimants = [known[number] for number in state.claimants]
        return self.promises.broken_by_trust(state.record, claimants, state.observed)

    def steps(self, state: State) -> Iterator[Step]:
        later = tuple(map(self.claimants.later, state.claimants))
        record = self.records.later(state.record)
        yield "a tick", state._replace(record=record, claimants=later, observed=state.observed.later()), ""
        for what in state.by_hand:
            yield f"by hand: {what}", self._by_hand(state, what), ""
        for me in range(len(self.plans)):
            yield from self._steps_of(state, me)
        for message in dict.fromkeys(state.messages):
            yield self._execute(state, message)

    def _by_hand(self, state: State, what: str) -> State:
        change = self.records.freed if what == "force release" else self.records.deleted
        observed = state.observed.ended_by_hand(state.record)
        by_hand = tuple(other for other in state.by_hand if other != what)
        return state._replace(record=change(state.record), observed=observed, by_hand=by_hand)

    def _steps_of(self, state: State, me: int) -> Iterator[Step]:
        number = state.claimants[me]
        claimant = self.claimants.known[number]
        if claimant.is_gone:
            return
        for kind in claimant.begins:
            effect = self.claimants.step(number, Event("begins", claimant.begun, kind))
            yield self._done(f"claimant {me} begins {kind}", state, me, effect)
        for operation, kind, may_retry in claimant.waiting:
            messages, replies = _cut_off(state, me, operation)
            for reply in state.replies:
                if reply.me == me and reply.operation == operation:
                    yield self._receive(state, kind, reply)
            if may_retry:
                effect = self.claimants.step(number, Event("loses the connection of", operation))
                yield self._done(f"claimant {me} sends {kind} again", state, me, effect, messages, replies)
            effect = self.claimants.step(number, Event("gives up", operation))
            yield self._done(f"claimant {me} gives up {kind}", state, me, effect, messages, replies)
        messages, replies = _cut_off(state, me)
        gone = Effect(self.claimants.gone(number))
        yield self._done(f"claimant {me} crashes", state, me, gone, messages, replies)

    def _receive(self, state: State, kind: str, reply: Reply) -> Step:
        me = reply.me
        effect = self.claimants.step(state.claimants[me], Event("receives", reply.operation, reply=reply.reply))
        label = f"claimant {me} receives the reply to {kind}"
        messages, replies = _cut_off(state, me, reply.operation)
        if effect.is_skip and reply.is_urgent:
            effect = effect._replace(broken="a skip was faked: the lock was held for this very claimant")
        return self._done(label, state, me, effect, messages, replies)

    def _done(
        self,
        label: str,
        state: State,
        me: int,
        effect: Effect,
        messages: tuple[Message, ...] | None = None,
        replies: tuple[Reply, ...] | None = None,
    ) -> Step:
        """Return the step of a claimant. ``messages`` and ``replies`` are the remaining ones; None: all remain."""
        if messages is None or replies is None:
            messages, replies = state.messages, state.replies
        for sent in effect.sent:
            operation = sent.operation if sent.is_awaited else UNAWAITED
            messages = (*messages, Message(me, operation, sent.kind, sent.command, sent.before))
        claimants = (*state.claimants[:me], effect.claimant, *state.claimants[me + 1 :])
        observed, broken = state.observed, effect.broken
        if effect.runs:
            broken = broken or ("I11: the fire time ran before" if observed.has_run else "")
            observed = observed._replace(has_run=True)
        following = State(state.record, claimants, messages, replies, observed, state.by_hand, state.grants)
        return label, following, broken

    def _execute(self, state: State, message: Message) -> Step:
        me, old = message.me, state.record
        new, reply = self.records.execute(old, message.command, state.grants)
        messages = list(state.messages)
        messages.remove(message)
        replies = state.replies
        if message.operation != UNAWAITED:
            is_urgent = old.holder == me and old.left > 0 and me not in state.observed.released
            others = tuple(each for each in replies if (each.me, each.operation) != (me, message.operation))
            replies = (
                *others,
                Reply(me, message.operation, reply, is_urgent and message.kind in ("acquire", "recover")),
            )
        observed, broken = self.promises.observe(state.observed, old, new, message)
        grants = state.grants + (new.token > old.token and new.holder != NOBODY)
        following = State(new, state.claimants, tuple(messages), replies, observed, state.by_hand, grants)
        shown = self.claimants.replies[reply]
        return f"the store carries out {message.kind} of claimant {me}: {shown}", following, broken

    # Messages without an effect

    def _essence(self, state: State) -> State:
        """Return the same state in a fixed order, without messages that have lost their effect."""
        record, claimants, messages, replies, observed, by_hand, grants = state
        if messages:
            messages = tuple(sorted([message for message in messages if self._can_matter(state, message)]))
        if len(replies) > 1:
            replies = tuple(sorted(replies))
        for me, number in enumerate(claimants):
            may_be_recovered = record.holder == me and self._recovers
            is_gone = self.claimants.known[number].is_gone and not may_be_recovered
            if is_gone and all(message.me != me for message in messages):
                observed = observed.without(me)
        return State(record, claimants, messages, replies, observed, by_hand, grants)

    def _can_matter(self, state: State, message: Message) -> bool:
        """Return False if the claimant of the message does not hold the lock, and can never be granted it.

        Then :meth:`_check_dropped` makes sure that the message changes no record of a different claimant.
        """
        me = message.me
        if message.operation != UNAWAITED or state.record.holder == me:
            return True
        if self.claimants.known[state.claimants[me]].may_claim:
            return True
        if any(other.me == me and other.kind in CLAIMS for other in state.messages):
            return True
        self._dropped.setdefault((me, message.kind, message.command), state)
        return False

    def _check_dropped(self, came_from: dict[State, tuple[State, str] | None]) -> None:
        for (me, kind, command), state in self._dropped.items():
            for record in list(self.records.met.values()):
                if record.holder != me and self.records.execute(record, command, state.grants)[0] != record:
                    way = _way(came_from, state) if state in came_from else []
                    raise Violation("\n".join([*way, f"I2: {kind} of claimant {me}, late, changes {record}"]))


def _cut_off(state: State, me: int, operation: int | None = None) -> tuple[tuple[Message, ...], tuple[Reply, ...]]:
    """Drop the way back of replies to this operation, or to all operations of this claimant."""
    messages, replies = state.messages, state.replies
    if messages:
        messages = tuple([
            Message(me, UNAWAITED, each.kind, each.command, each.before)
            if each.me == me and (operation is None or each.operation == operation) else each
            for each in messages
        ])  # fmt: skip
    if replies:
        replies = tuple([
            each for each in replies if each.me != me or (operation is not None and each.operation != operation)
        ])  # fmt: skip
    return messages, replies


def _way(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    labels: list[str] = []
    step = came_from[state]
    while step is not None:
        labels.append(step[1])
        step = came_from[step[0]]
    return labels[::-1]
