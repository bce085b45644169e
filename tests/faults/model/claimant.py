"""The claimant's part of the model: what ``Claim``, ``Lease``, ``Extension``, the programs and the guard do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.model.states import AWAITED_BY_NOBODY, NOBODY, Claim, Message, Operation, changed


@dataclass(frozen=True)
class Claimant:
    at_most: int
    at_least: int
    changes: frozenset[str]
    retries: int = 0
    lengths: tuple[int, ...] = ()
    doubts_repeats: bool = True
    """Whether the store may do an extension again although a later one was done."""

    def steps(self, claim: Claim, by_force: bool, token: int) -> Iterator[tuple[str, Claim]]:
        """What it may do next. ``token`` is that of the record, which a take-over reads first; 0 if there is none."""
        if claim.phase == "gone":
            return
        if claim.phase == "new":
            sent = self._send(claim, "acquire", self.at_most)
            if by_force:
                sent = self._send(claim, "take over", self.at_most, before=token)
            yield "sends", changed(sent, phase="sends")
            return
        for operation in claim.operations:
            if operation.reply != NOBODY:
                yield f"receives {operation.number}: {operation.reply}", self._receive(claim, operation)
            if operation.retries:
                yield f"sends again {operation.number}", self._send_again(claim, operation)
            yield f"gives up {operation.number}", self._give_up(claim, operation)
        if claim.phase == "holds":
            if claim.extensions < len(self.lengths):
                length = self.lengths[claim.extensions]
                yield f"extends by {length}", self._extend(claim, length)
            yield "releases", self._release(claim)
            if "trust is a flag" in self.changes and claim.is_flagged and not claim.trust:
                yield "checks the clock", changed(claim, is_flagged=False)
        yield "crashes", changed(_cut_off(claim), phase="gone")

    def later(self, claim: Claim) -> Claim:
        return changed(
            claim,
            trust=max(0, claim.trust - 1),
            minimum=max(0, claim.minimum - 1),
            operations=tuple(
                changed(operation, trustable=max(0, operation.trustable - 1)) for operation in claim.operations
            ),
        )

    def _send(self, claim: Claim, kind: str, length: int, token: int = 0, before: int = 0) -> Claim:
        number = claim.sent
        operation = Operation(number, kind, length, length, self.retries, token, before)
        return changed(
            claim,
            sent=number + 1,
            operations=(*claim.operations, operation),
            messages=(*claim.messages, _message(operation)),
        )

    def _send_again(self, claim: Claim, operation: Operation) -> Claim:
        """The connection broke. What was sent may still be carried out, but no reply to it can come."""
        claim = _cut_off(claim, operation.number)
        again = changed(operation, retries=operation.retries - 1, reply=NOBODY)
        return changed(
            claim,
            operations=tuple(again if other.number == operation.number else other for other in claim.operations),
            messages=(*claim.messages, _message(operation)),
        )

    def _give_up(self, claim: Claim, operation: Operation) -> Claim:
        claim = _answered(_cut_off(claim, operation.number), operation)
        match operation.kind:
            case "extend":
                return claim  # it stays in doubt
            case "release":
                return changed(claim, phase="gone")
            case _:
                undo = Message("undo")
                return changed(claim, phase="gone", messages=(*claim.messages, undo))

    def _receive(self, claim: Claim, operation: Operation) -> Claim:
        claim = _answered(claim, operation)
        match operation.kind:
            case "extend":
                return self._receive_extension(claim, operation)
            case "release":
                return changed(claim, phase="gone")
        if not operation.reply:
            return changed(claim, phase="gone")
        counted = self.at_most if "trust counts from the reply" in self.changes else operation.trustable
        minimum = max(0, self.at_least - (self.at_most - operation.trustable))
        if "the minimum hold counts from the operation" not in self.changes:
            minimum = self.at_least
        return changed(
            claim, phase="holds", trust=counted, is_flagged=counted > 0, minimum=minimum, token=operation.reply
        )

    def _extend(self, claim: Claim, wanted: int) -> Claim:
        length = wanted if "extensions cut the minimum hold" in self.changes else max(wanted, claim.minimum)
        number = claim.sent
        trust = claim.trust if "a shorter extension is trusted late" in self.changes else min(claim.trust, length)
        claim = self._send(claim, "extend", length, claim.token)
        return changed(
            claim,
            trust=trust,
            doubts=(*claim.doubts, (number, length, length)),
            latest=number,
            extensions=claim.extensions + 1,
        )

    def _receive_extension(self, claim: Claim, operation: Operation) -> Claim:
        if not operation.reply:
            return changed(claim, trust=0, is_flagged=False, latest=NOBODY)
        [shortest] = [shortest for number, _, shortest in claim.doubts if number == operation.number]
        others = tuple(doubt for doubt in claim.doubts if doubt[0] != operation.number)
        shortest = min([shortest, claim.repeated or shortest, *(length for _, length, _ in others)])
        if "nothing stays in doubt" in self.changes:
            shortest = operation.length
        until = max(0, operation.trustable - (operation.length - shortest))
        if "trust counts from the reply" in self.changes:
            until = operation.length
        trust = until if claim.latest == operation.number else min(claim.trust, until)
        if "extensions forget each other" not in self.changes:
            # Of those that were under way at the same time nobody knows which the store did last.
            others = tuple((number, length, min(least, operation.length)) for number, length, least in others)
        repeated = claim.repeated
        if self.doubts_repeats and operation.retries < self.retries and "extensions are done once" not in self.changes:
            repeated = min(operation.length, claim.repeated or operation.length)
        return changed(claim, trust=trust, is_flagged=trust > 0, doubts=others, repeated=repeated)

    def _release(self, claim: Claim) -> Claim:
        """Belief ends before anything is sent; what is left of the minimum hold is for the store to keep."""
        claim = changed(claim, phase="releases", trust=0, is_flagged=False, latest=NOBODY)
        return self._send(claim, "release", claim.minimum)


def _message(operation: Operation) -> Message:
    order = operation.number if operation.kind == "extend" else NOBODY
    return Message(operation.kind, operation.length, operation.number, operation.token, order, operation.before)


def _answered(claim: Claim, operation: Operation) -> Claim:
    return changed(claim, operations=tuple(other for other in claim.operations if other.number != operation.number))


def _cut_off(claim: Claim, number: int | None = None) -> Claim:
    """No reply can come to this operation any more, or to any."""
    messages = tuple(
        changed(message, operation=AWAITED_BY_NOBODY) if number is None or message.operation == number else message
        for message in claim.messages
    )
    if number is None:
        return changed(claim, messages=messages, operations=(), trust=0, is_flagged=False)
    return changed(claim, messages=messages)
