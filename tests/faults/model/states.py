"""What the states of the model are made of.

Nothing holds a moment: only how many ticks are left, or nothing once they are over. So the states are finitely many,
although time never ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

T = TypeVar("T", bound=NamedTuple)

NOBODY = -1
AWAITED_BY_NOBODY = -1


class Record(NamedTuple):
    holder: int = NOBODY
    """The claim id."""
    left: int = 0
    """Ticks until ``lock_until``; the lock is held while there are any."""
    token: int = 0
    is_released: bool = False
    """The mark of a release, where the store keeps one: ``released_token == fencing_token``."""
    extended: int = NOBODY
    """The newest extension that was done, where the store keeps that, by its place among those of the claimant."""
    kept: int = 0
    """Only for the checks: ticks left of the minimum hold, counted from the grant on the store's clock."""


class Message(NamedTuple):
    """A operation to the store that is under way, and may stay so for any time."""

    kind: str
    length: int = 0
    """The duration in it: a lease, or what is left of the minimum hold."""
    operation: int = AWAITED_BY_NOBODY
    """The operation of the claimant that it carries; none if the connection for its reply is gone."""
    token: int = 0
    """Of the acquisition that it extends."""
    order: int = NOBODY
    """Of an extension: its place among those of the claimant."""
    before: int = 0
    """Of a take-over: the token of the record that was read; 0 if there was none."""


class Operation(NamedTuple):
    number: int
    kind: str
    length: int
    trustable: int
    """Ticks left of what may be trusted if the reply is yes, counted from when it was first sent."""
    retries: int
    token: int = 0
    before: int = 0
    reply: int = NOBODY
    """The reply that is on its way back: a token, 1 for yes, 0 for no."""


class Claim(NamedTuple):
    """One acquisition, and its claimant. ``phase``: "new", "sends", "holds", "releases" or "gone"."""

    phase: str = "new"
    operations: tuple[Operation, ...] = ()
    messages: tuple[Message, ...] = ()
    trust: int = 0
    """Ticks left of the trust window."""
    is_flagged: bool = False
    """Whether a watchdog has not yet cleared the flag of claimants that trust a flag instead of a clock."""
    minimum: int = 0
    """Ticks left of the minimum hold, as the claimant counts them."""
    token: int = 0
    doubts: tuple[tuple[int, int, int], ...] = ()
    """Extensions, by number, that were sent and not granted: how long each would let the lock last, and how short
    one is that was under way at the same time."""
    repeated: int = 0
    """The shortest extension that was granted and sent twice, so that it may be done again; 0 if there is none."""
    latest: int = NOBODY
    sent: int = 0
    extensions: int = 0
    """How many there were."""
    # Only for the checks.
    is_revoked: bool = False
    """Somebody has ended the lease by hand."""
    has_released: bool = False
    """The store has carried its release out."""
    newest: int = 0
    """The newest token that the store has given to this claim."""


class State(NamedTuple):
    record: Record | None
    claims: tuple[Claim, ...]
    by_hand: tuple[str, ...] = ()
    """What an operator may still do by hand: "force release", "delete"."""
    clock: int = 0
    """The store's clock in microseconds, of which only the order matters: it moves with each grant."""


def changed(old: T, **facts: Any) -> T:
    return old._replace(**facts)  # public, whatever its name looks like


def with_claim(state: State, number: int, claim: Claim) -> State:
    return changed(state, claims=(*state.claims[:number], claim, *state.claims[number + 1 :]))
