"""The claimant's part of the model: what ``Claim``, ``Lease``, ``Extension``, the programs and the guard do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.model.states import AWAITED_BY_NOBODY, NOBODY, Claim, Message, Question


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
            asks = self._ask(claim, "acquire", self.at_most)
            if by_force:
                asks = self._ask(claim, "take over", self.at_most, before=token)
            yield "asks", asks._replace(phase="asks")
            return
        for question in claim.questions:
            if question.reply != NOBODY:
                yield f"hears {question.number}: {question.reply}", self._hear(claim, question)
            if question.retries:
                yield f"asks again {question.number}", self._ask_again(claim, question)
            yield f"gives up {question.number}", self._give_up(claim, question)
        if claim.phase == "holds":
            if claim.extensions < len(self.lengths):
                length = self.lengths[claim.extensions]
                yield f"extends by {length}", self._extend(claim, length)
            yield "releases", self._release(claim)
            if "belief is a flag" in self.changes and claim.is_flagged and not claim.belief:
                yield "looks at the clock", claim._replace(is_flagged=False)
        yield "crashes", _cut_off(claim)._replace(phase="gone")

    def later(self, claim: Claim) -> Claim:
        """A tick later."""
        return claim._replace(
            belief=max(0, claim.belief - 1),
            minimum=max(0, claim.minimum - 1),
            questions=tuple(
                question._replace(believable=max(0, question.believable - 1)) for question in claim.questions
            ),
        )

    def _ask(self, claim: Claim, kind: str, length: int, token: int = 0, before: int = 0) -> Claim:
        number = claim.asked
        question = Question(number, kind, length, length, self.retries, token, before)
        return claim._replace(
            asked=number + 1,
            questions=(*claim.questions, question),
            messages=(*claim.messages, _message(question)),
        )

    def _ask_again(self, claim: Claim, question: Question) -> Claim:
        """The connection broke. What was sent may still be carried out, but no reply to it can come."""
        claim = _cut_off(claim, question.number)
        again = question._replace(retries=question.retries - 1, reply=NOBODY)
        return claim._replace(
            questions=tuple(again if other.number == question.number else other for other in claim.questions),
            messages=(*claim.messages, _message(question)),
        )

    def _give_up(self, claim: Claim, question: Question) -> Claim:
        claim = _answered(_cut_off(claim, question.number), question)
        match question.kind:
            case "extend":
                return claim  # it stays in doubt
            case "release":
                return claim._replace(phase="gone")
            case _:
                undo = Message("undo")
                return claim._replace(phase="gone", messages=(*claim.messages, undo))

    def _hear(self, claim: Claim, question: Question) -> Claim:
        claim = _answered(claim, question)
        match question.kind:
            case "extend":
                return self._hear_of_extension(claim, question)
            case "release":
                return claim._replace(phase="gone")
        if not question.reply:
            return claim._replace(phase="gone")
        counted = self.at_most if "belief counts from the reply" in self.changes else question.believable
        minimum = max(0, self.at_least - (self.at_most - question.believable))
        if "the minimum hold counts from the question" not in self.changes:
            minimum = self.at_least
        return claim._replace(
            phase="holds", belief=counted, is_flagged=counted > 0, minimum=minimum, token=question.reply
        )

    def _extend(self, claim: Claim, wanted: int) -> Claim:
        length = wanted if "extensions cut the minimum hold" in self.changes else max(wanted, claim.minimum)
        number = claim.asked
        belief = claim.belief if "a shorter extension is believed late" in self.changes else min(claim.belief, length)
        claim = self._ask(claim, "extend", length, claim.token)
        return claim._replace(
            belief=belief,
            doubts=(*claim.doubts, (number, length, length)),
            latest=number,
            extensions=claim.extensions + 1,
        )

    def _hear_of_extension(self, claim: Claim, question: Question) -> Claim:
        if not question.reply:
            return claim._replace(belief=0, is_flagged=False, latest=NOBODY)
        [shortest] = [shortest for number, _, shortest in claim.doubts if number == question.number]
        others = tuple(doubt for doubt in claim.doubts if doubt[0] != question.number)
        shortest = min([shortest, claim.repeated or shortest, *(length for _, length, _ in others)])
        if "nothing stays in doubt" in self.changes:
            shortest = question.length
        until = max(0, question.believable - (question.length - shortest))
        if "belief counts from the reply" in self.changes:
            until = question.length
        belief = until if claim.latest == question.number else min(claim.belief, until)
        if "extensions forget each other" not in self.changes:
            # Of those that were under way at the same time nobody knows which the store did last.
            others = tuple((number, length, min(least, question.length)) for number, length, least in others)
        repeated = claim.repeated
        if self.doubts_repeats and question.retries < self.retries and "extensions are done once" not in self.changes:
            repeated = min(question.length, claim.repeated or question.length)
        return claim._replace(belief=belief, is_flagged=belief > 0, doubts=others, repeated=repeated)

    def _release(self, claim: Claim) -> Claim:
        """Belief ends before anything is sent; what is left of the minimum hold is for the store to keep."""
        claim = claim._replace(phase="releases", belief=0, is_flagged=False, latest=NOBODY)
        return self._ask(claim, "release", claim.minimum)


def _message(question: Question) -> Message:
    order = question.number if question.kind == "extend" else NOBODY
    return Message(question.kind, question.length, question.number, question.token, order, question.before)


def _answered(claim: Claim, question: Question) -> Claim:
    return claim._replace(questions=tuple(other for other in claim.questions if other.number != question.number))


def _cut_off(claim: Claim, number: int | None = None) -> Claim:
    """No reply can come to this question any more, or to any."""
    messages = tuple(
        message._replace(question=AWAITED_BY_NOBODY) if number is None or message.question == number else message
        for message in claim.messages
    )
    if number is None:
        return claim._replace(messages=messages, questions=(), belief=0, is_flagged=False)
    return claim._replace(messages=messages)
