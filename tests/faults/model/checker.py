"""All states that a few claimants and one lock record can get into, breadth first: the first violation is the shortest.

Every operation to the store is carried out at any time, in any order, or never; its reply may be lost, and it may be
sent again. Claimants crash, or stand still for any time: all of them may do nothing while time goes by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.faults.model.claimant import Claimant
from tests.faults.model.states import AWAITED_BY_NOBODY, Claim, Message, Operation, State, changed, with_claim
from tests.faults.model.store import Store, delete, force_release, passed, what_is_broken

Step = tuple[str, State, str]
"""What happened, the state after it, and the promise that it broke, if any."""


class Violation(Exception):
    """A promise is broken; the text is the shortest way there, step by step."""


@dataclass(frozen=True)
class Model:
    """``changes`` are mutations of the algorithm: each must be found."""

    dialect: str = "sql"
    claims: int = 2
    at_most: int = 3
    at_least: int = 0
    retries: int = 0
    """How often the first claimant retries after a broken connection; what it sent may still be carried out."""
    lengths: tuple[int, ...] = ()
    """The extensions that the first claimant sends, in this order; the others are there to take the lock."""
    forceful: frozenset[int] = frozenset()
    """Claims that take over."""
    by_hand: tuple[str, ...] = ()
    changes: frozenset[str] = frozenset()
    store: Store = field(init=False)
    claimants: tuple[Claimant, ...] = field(init=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen
        set_field(self, "store", Store(self.dialect, self.at_most, self.at_least, self.changes))
        is_redis = self.dialect == "redis"
        first = Claimant(self.at_most, self.at_least, self.changes, self.retries, self.lengths, not is_redis)
        others = (Claimant(self.at_most, self.at_least, self.changes),) * (self.claims - 1)
        set_field(self, "claimants", (first, *others))

    def start(self) -> State:
        return State(None, (Claim(),) * self.claims, self.by_hand)

    def check(self) -> int:
        """How many states there are.

        :raises Violation: a promise is broken.
        """
        start = self.start()
        came_from: dict[State, tuple[State, str] | None] = {start: None}
        todo = deque([start])
        while todo:
            state = todo.popleft()
            for label, following, broken in self.steps(state):
                broken = broken or what_is_broken(following, self.by_flag)
                if broken:
                    raise Violation("\n".join([*_way(came_from, state), f"{label} — {broken}"]))
                following = _essence(following)
                if following not in came_from:
                    came_from[following] = (state, label)
                    todo.append(following)
        return len(came_from)

    @property
    def by_flag(self) -> bool:
        return "trust is a flag" in self.changes

    def steps(self, state: State) -> Iterator[Step]:
        yield "a tick", self._later(state), ""
        for what in state.by_hand:
            rest = tuple(other for other in state.by_hand if other != what)
            act = force_release if what == "force release" else delete
            yield f"by hand: {what}", changed(act(state), by_hand=rest), ""
        for me, claim in enumerate(state.claims):
            token = state.record.token if state.record else 0
            for label, following in self.claimants[me].steps(claim, me in self.forceful, token):
                yield f"claim {me} {label}", with_claim(state, me, following), ""
            for message in dict.fromkeys(claim.messages):
                yield self._execute(state, me, message)

    def _later(self, state: State) -> State:
        claims = tuple(self.claimants[0].later(claim) for claim in state.claims)
        return changed(state, record=passed(state.record), claims=claims)

    def _execute(self, state: State, me: int, message: Message) -> Step:
        following, reply, broken = self.store.execute(state, me, message)
        claim = following.claims[me]
        messages = list(claim.messages)
        messages.remove(message)
        operations = tuple(
            changed(operation, reply=reply) if operation.number == message.operation else operation
            for operation in claim.operations
        )
        following = with_claim(following, me, changed(claim, messages=tuple(messages), operations=operations))
        label = f"the store carries out {message.kind} {message.length} of claim {me}: {reply}"
        return label, following, broken


def _way(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    labels: list[str] = []
    step = came_from[state]
    while step is not None:
        labels.append(step[1])
        step = came_from[step[0]]
    return labels[::-1]


def _essence(state: State) -> State:
    """The same without what can have no effect any more."""
    holder = state.record.holder if state.record else AWAITED_BY_NOBODY
    claims = tuple(_essence_of(claim, holder == me) for me, claim in enumerate(state.claims))
    return changed(state, claims=claims)


def _essence_of(claim: Claim, has_record: bool) -> Claim:
    messages = claim.messages
    if not has_record and not any(message.kind in ("acquire", "take over") for message in messages):
        messages = tuple(message for message in messages if message.operation != AWAITED_BY_NOBODY)
    if claim.phase == "gone":
        return Claim(
            "gone",
            messages=tuple(sorted(messages)),
            newest=claim.newest,
            is_revoked=claim.is_revoked and bool(messages),
            has_released=claim.has_released and bool(messages),
        )
    return changed(claim, messages=tuple(sorted(messages)))


__all__ = ["Model", "Operation", "Violation"]
