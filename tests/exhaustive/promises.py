"""The promises, checked by an observer who sees the record and all claimants at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tests.exhaustive.claimant import Claimant
from tests.exhaustive.records import NOBODY, Record
from tests.exhaustive.run import CLAIMS, Plan

if TYPE_CHECKING:
    from tests.exhaustive.search import Message


class Observed(NamedTuple):
    """The observer's memory. Claimants by their numbers."""

    revoked: frozenset[int]
    """Claimants whose lease was ended by an operator or a take-over."""
    released: frozenset[int]
    """Claimants whose release the store has carried out."""
    newest: tuple[int, ...]
    """By claimant: its newest token from the store."""
    kept: int = 0
    """Ticks left of the minimum hold, counted from the grant on the store's clock."""
    has_run: bool = False
    """A claimant has got a lease for the fire time."""
    is_recovered: bool = False
    """The run of the fire time was recovered."""

    @classmethod
    def at_start(cls, claimants: int) -> Observed:
        return cls(frozenset(), frozenset(), (0,) * claimants)

    def later(self) -> Observed:
        return self._replace(kept=self.kept - 1) if self.kept else self

    def ended_by_hand(self, record: Record) -> Observed:
        if not record.left:
            return self
        return self._replace(revoked=self.revoked | {record.holder}, kept=0)

    def without(self, me: int) -> Observed:
        """Drop all knowledge of a claimant that is gone and has no message under way."""
        if me not in self.revoked and me not in self.released:
            return self
        return self._replace(revoked=self.revoked - {me}, released=self.released - {me})


@dataclass(frozen=True)
class Promises:
    """Rules that hold after each step."""

    plans: tuple[Plan, ...]

    def observe(self, seen: Observed, old: Record, new: Record, message: Message) -> tuple[Observed, str]:
        """Update the observer after the store has carried out ``message``. Also return the broken promise, or ""."""
        me = message.me
        if message.kind in CLAIMS and new.holder == me and (old.holder != me or new.token != old.token):
            broken = self._broken_by_grant(seen, old, new, message)
            newest = tuple(max(token, new.token) if who == me else token for who, token in enumerate(seen.newest))
            revoked = seen.revoked
            if old.left and old.holder not in (me, NOBODY):
                revoked |= {old.holder}
            # A late copy of an acquire, after its lease was replaced, is granted without a holder: no minimum hold.
            kept = 0 if seen.newest[me] else self.plans[me].at_least
            is_recovered = seen.is_recovered or message.kind == "recover"
            return seen._replace(newest=newest, revoked=revoked, kept=kept, is_recovered=is_recovered), broken
        broken = self._broken_by_change(seen, old, new, message)
        if message.kind in ("release", "undo") and new != old:
            # The undone lease never had a holder.
            kept = 0 if message.kind == "undo" else seen.kept
            seen = seen._replace(released=seen.released | {me}, kept=kept)
        return seen, broken

    def _broken_by_grant(self, seen: Observed, old: Record, new: Record, message: Message) -> str:
        me = message.me
        if old.holder == me:
            return f"I3: the lease of claimant {me} has ended, and it is granted again for nobody"
        if message.kind != "acquire" and message.before != old.token:
            return f"I1: claimant {me} took over what it had not read, from claimant {old.holder}"
        if message.kind != "take over" and old.left:
            return f"I1: granted to claimant {me} while claimant {old.holder} has it"
        if message.kind != "take over" and seen.kept:
            return f"I4: granted to claimant {me}, {seen.kept} ticks before the minimum hold of {old.holder} is over"
        if message.kind == "recover" and old.holder in seen.released | seen.revoked:
            return f"I14: claimant {me} recovers the run of claimant {old.holder}, which was ended"
        plan = self.plans[me]
        if message.kind == "acquire" and seen.is_recovered and plan.has_fire_time and not plan.is_later:
            return f"I11: granted to claimant {me}, although another has recovered the run"
        if new.left != plan.at_most:
            return f"I3: granted for {new.left} ticks instead of {plan.at_most}"
        if new.token <= max(seen.newest):
            return f"I7: token {new.token} after {max(seen.newest)}"
        return ""

    def _broken_by_change(self, seen: Observed, old: Record, new: Record, message: Message) -> str:
        me = message.me
        if old.holder != me and new != old:
            return f"I2: {message.kind} of claimant {me} changed the record of claimant {old.holder}"
        if new.left > max(old.left, self._longest(message)):
            return f"I3: free only after {new.left} ticks"
        if new.left > old.left and me in seen.revoked:
            return "a lease that was ended by hand is alive again"
        if new.left > old.left and not old.left:
            return "an expired lease is alive again"
        if new.left > old.left and me in seen.released and message.kind in (*CLAIMS, "extend"):
            return f"I3: claimant {me} has released the lock, and it is held again for nobody"
        if new.left < seen.kept and message.kind != "undo":
            return f"I4: {message.kind} frees the lock {seen.kept - new.left} ticks before the minimum hold is over"
        return ""

    def _longest(self, message: Message) -> int:
        """Return the longest lease that a command may leave."""
        plan = self.plans[message.me]
        match message.kind:
            case "extend":
                return max(plan.at_least, *plan.extensions)
            case "release":
                return plan.at_least
            case "undo":
                return 0
        return plan.at_most

    def broken_by_trust(self, record: Record, claimants: Sequence[Claimant], seen: Observed) -> str:
        for me, claimant in enumerate(claimants):
            if me in seen.revoked or not claimant.trust:
                continue
            if record.holder != me or not record.left:
                return f"I6: claimant {me} trusts its lease, and the store has {_shown(record)}"
            if claimant.trust > record.left:
                return (
                    f"I6: claimant {me} will trust it for {claimant.trust} ticks, and the store keeps it {record.left}"
                )
            others = max((token for who, token in enumerate(seen.newest) if who != me), default=0)
            if others > (claimant.token or 0):
                return f"I2: claimant {me} trusts token {claimant.token} after {others} was given to another"
        return ""


def _shown(record: Record) -> str:
    if record.holder == NOBODY or not record.left:
        return "a free lock"
    return f"claimant {record.holder} as its holder"
