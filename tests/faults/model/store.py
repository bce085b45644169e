"""The store's part of the model: what an operation does to the lock record, as real statements and scripts decide.

Three dialects of the same: "sql" (statements), "redis" (acquire.lua, …) and "mongodb" (commands.py). The last two mark
a record as released, so that a operation that comes late finds out.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.model.states import NOBODY, Claim, Message, Record, State, changed, with_claim


@dataclass(frozen=True)
class Store:
    """``changes`` are mutations: each makes one decision wrong."""

    dialect: str
    at_most: int
    at_least: int
    changes: frozenset[str] = frozenset()

    def execute(self, state: State, me: int, message: Message) -> tuple[State, int, str]:
        """The state after it, the reply (a token, 1 for yes, 0 for no), and which promise that breaks, if any."""
        record = state.record or Record()
        match message.kind:
            case "acquire" | "take over":
                following, reply = self._claim(state, me, message)
            case "extend":
                following, reply = self._extend(state, record, me, message)
            case _:
                following, reply = self._release(state, record, me, message)
        return following, reply, self._broken(state, following, me, message, reply)

    def _claim(self, state: State, me: int, message: Message) -> tuple[State, int]:
        record = state.record or Record()
        is_mine = record.holder == me and "retries are not recognised" not in self.changes
        by_force = message.kind == "take over"
        if "ended claims are granted again" in self.changes and not record.left:
            is_mine = False
        if is_mine:  # what was done already is not done again
            was_released = record.is_released and self.dialect == "redis"
            left = self.at_most if "a retry begins anew" in self.changes and record.left else record.left
            if "a retry prolongs" in self.changes:
                left = max(record.left, self.at_most)
            return changed(
                state, record=changed(record, left=left)
            ), 0 if was_released and not by_force else record.token
        if record.left and not by_force:
            return state, 0
        if by_force and message.before != record.token and "take-overs of any record" not in self.changes:
            return state, 0
        token = max(record.token + 1, state.clock + 1)
        if "tokens without the clock" in self.changes:
            token = record.token + 1
        granted = Record(me, self.at_most, token, kept=self.at_least)
        claims = tuple(
            changed(claim, is_revoked=True) if number == record.holder and record.left and number != me else claim
            for number, claim in enumerate(state.claims)
        )
        state = changed(state, record=granted, claims=claims, clock=max(state.clock + 1, token))
        claim = state.claims[me]
        return with_claim(state, me, changed(claim, newest=max(claim.newest, token))), token

    def _extend(self, state: State, record: Record, me: int, message: Message) -> tuple[State, int]:
        was_released = record.is_released and self.dialect != "sql" and "late extensions" not in self.changes
        has_ended = not record.left and "expired leases are extended" not in self.changes
        is_another = record.token != message.token and "extensions do not carry the token" not in self.changes
        if record.holder != me or was_released or has_ended or is_another:
            return state, 0
        if message.order < record.extended and "overtaken extensions are done" not in self.changes:
            return state, 1
        left = record.left + message.length if "extensions add up" in self.changes else message.length
        extended = message.order if self.dialect == "redis" else NOBODY
        return changed(state, record=changed(record, left=left, extended=extended)), 1

    def _release(self, state: State, record: Record, me: int, message: Message) -> tuple[State, int]:
        is_mine = record.holder == me or "releases by name" in self.changes
        if not is_mine:
            return state, 0
        if record.is_released and self.dialect != "sql":
            return state, 1
        if not record.left:
            return state, int(message.kind == "undo")  # it is free, as it should be
        # What is undone was never held by anybody.
        kept = 0 if message.kind == "undo" else record.kept
        freed = changed(record, left=message.length, is_released=True, kept=kept)
        claim = state.claims[me]
        return with_claim(changed(state, record=freed), me, changed(claim, has_released=True)), 1

    def _broken(self, before: State, after: State, me: int, message: Message, reply: int) -> str:
        old, new, claim = before.record or Record(), after.record or Record(), before.claims[me]
        by_force = message.kind == "take over"
        is_grant = message.kind in ("acquire", "take over") and new.holder == me and new.token != old.token
        if is_grant:
            if by_force and message.before != old.token:
                return f"I1: claim {me} took over what it had not read, from claim {old.holder}"
            return self._broken_by_grant(before, old, new, me, by_force)
        if old.holder != me and new != old:
            return f"I2: {message.kind} of claim {me} changed the record of claim {old.holder}"
        if message.kind == "acquire" and not reply and old.holder == me and old.left and not claim.has_released:
            return "a skip was faked: the lock is held for this very claim"
        if new.left > max(old.left, message.length, self.at_most if message.kind == "acquire" else 0):
            return f"I3: free only after {new.left} ticks, {message.length}"
        if new.left > old.left and claim.is_revoked:
            return "a lease that was ended by hand is alive again"
        if new.left > old.left and claim.has_released and message.kind in self._must_find_it_released:
            return f"I3: claim {me} has released the lock, and it is held again for nobody"
        return ""

    @property
    def _must_find_it_released(self) -> tuple[str, ...]:
        # SQL has no mark. There a heartbeat that is still under way can prolong a minimum hold: the guard waits for it.
        return ("acquire", "take over", *(("extend",) if self.dialect != "sql" else ()))

    def _broken_by_grant(self, before: State, old: Record, new: Record, me: int, by_force: bool) -> str:
        if old.holder == me:
            return f"I3: the lease of claim {me} has ended, and it is granted again for nobody"
        if old.left and old.holder != me and not by_force:
            return f"I1: granted to claim {me} while claim {old.holder} has it"
        if old.kept and old.holder != me and not by_force:
            return f"I4: granted to claim {me}, {old.kept} ticks before the minimum hold of claim {old.holder} is over"
        if new.token <= max(claim.newest for claim in before.claims):
            return f"I7: token {new.token} after {max(claim.newest for claim in before.claims)}"
        return ""


def force_release(state: State) -> State:
    record = state.record or Record()
    if not record.left:
        return state
    return changed(_revoked(state, record.holder), record=changed(record, left=0, kept=0))


def delete(state: State) -> State:
    record = state.record or Record()
    return changed((_revoked(state, record.holder) if record.left else state), record=None)


def _revoked(state: State, holder: int) -> State:
    return with_claim(state, holder, changed(state.claims[holder], is_revoked=True))


def passed(record: Record | None) -> Record | None:
    return record and changed(record, left=max(0, record.left - 1), kept=max(0, record.kept - 1))


def trusts(claim: Claim, by_flag: bool) -> bool:
    return claim.is_flagged if by_flag else claim.trust > 0


def what_is_broken(state: State, by_flag: bool) -> str:
    record = state.record or Record()
    for me, claim in enumerate(state.claims):
        if claim.is_revoked or not trusts(claim, by_flag):
            continue
        if record.holder != me or not record.left:
            return f"I6: claim {me} trusts its lease, and the store has {_shown(record)}"
        if claim.trust > record.left:
            return f"I6: claim {me} will trust it for {claim.trust} ticks, and the store keeps it {record.left}"
        others = max((other.newest for number, other in enumerate(state.claims) if number != me), default=0)
        if others > claim.token:
            return f"I2: claim {me} trusts token {claim.token} after {others} was given to another"
    return ""


def _shown(record: Record) -> str:
    if record.holder == NOBODY or not record.left:
        return "a free lock"
    return f"claim {record.holder} as its holder"
