"""The votes of a quorum's servers, counted."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from shedlock_py.providers.redis.quorum.majority import failures

# The kinds of reply of quorum_vote.lua
HELD, VOTED, OTHER, RAN, QUARANTINED, TOO_LATE = 0, 1, 2, 3, 4, 5


class Verdict(enum.Enum):
    WON = "a majority has voted for this claim"
    SKIP = "another claim has, or may have, a majority; or this fire time ran"
    IMPOSSIBLE = "too few servers reply, are out of quarantine, or find the fire time early enough"
    SPLIT = "no claim has a majority, and one should get it"


class VoteTally:
    """The replies to a vote for the claim ``locked_by``: each a pair of ``quorum_vote.lua``, or an error.

    :ivar token: the greatest that any of the voters could give.
    :ivar voters: the numbers of the servers that voted for the claim.
    :ivar errors: of the servers that neither voted nor gave a reason.
    """

    def __init__(self, locked_by: bytes, replies: Sequence[Any]) -> None:
        self._locked_by = locked_by
        self._size = len(replies)
        self._majority = self._size // 2 + 1
        self.errors = [reply for reply in replies if isinstance(reply, Exception)]
        results = {number: reply for number, reply in enumerate(replies) if not isinstance(reply, Exception)}
        self.voters = frozenset(number for number, reply in results.items() if reply[0] == VOTED)
        self.token = max((results[number][1] for number in self.voters), default=0)
        run_ids = [run_id for number in self.voters for run_id in results[number][2:]]
        self.same_server = len(set(run_ids)) < len(run_ids)
        """A server has voted twice, under two names: then there is no majority."""
        details: dict[int, list[Any]] = {}
        for kind, detail, *_ in results.values():
            details.setdefault(kind, []).append(detail)
        self._leases, self._votes = Counter(details.get(HELD)), Counter(details.get(OTHER))
        self._ran, self._too_late = len(details.get(RAN, ())), len(details.get(TOO_LATE, ()))
        self._quarantines = details.get(QUARANTINED, [])

    def verdict(self) -> Verdict:
        return self._verdict(len(self.errors))

    def is_settled(self) -> bool:
        """Whether the missing replies cannot change the verdict."""
        return self._verdict(0) is self.verdict()

    def _verdict(self, missing: int) -> Verdict:
        silent = missing + len(self._quarantines)
        if len(self.voters) >= self._majority:
            return Verdict.WON
        if self._size - missing < self._majority:
            return Verdict.IMPOSSIBLE  # too few to know that it is held, or that it ran
        # Servers that are silent, or have forgotten, may be with a claim that is known to have others.
        if any(count + self._votes[claim] + silent >= self._majority for claim, count in self._leases.items()):
            return Verdict.SKIP
        if any(count + self._leases[claim] >= self._majority for claim, count in self._votes.items()):
            return Verdict.SKIP
        if self._ran >= self._majority:  # on fewer, a claim that failed may have left it
            return Verdict.SKIP
        if self._size - silent - self._ran - self._too_late < self._majority:
            return Verdict.IMPOSSIBLE
        return Verdict.SPLIT

    def is_ahead(self) -> bool:
        """Whether this claim keeps its votes for the next vote after a split. One claim must; the others give way."""

        def rank(claim: bytes, votes: int) -> tuple[int, bytes]:
            return votes, claim[-32:]  # the claim id is random, which is fair

        this = rank(self._locked_by, len(self.voters))
        return all(this > rank(claim, count) for claim, count in self._votes.items())

    def is_too_late(self) -> bool:
        """Whether it is the fire time that leaves no majority: the servers that replied nothing else are enough."""
        silent = len(self.errors) + len(self._quarantines)
        return self._too_late > 0 and self._size - silent - self._ran >= self._majority

    def why_not(self) -> str:
        """Why no claim can have a majority now, for people."""
        reasons = [failures(self.errors, self._size)] if self.errors else []
        if self._quarantines:
            wait = timedelta(seconds=min(self._quarantines) // 1000)
            reasons.append(
                f"{len(self._quarantines)} of {self._size} are in quarantine for {wait} or longer, because they were "
                f"emptied or restarted and may have forgotten a lease (a new quorum: call start_new_quorum() once, by "
                f"hand)"
            )
        return "; ".join(reasons)

    @property
    def cause(self) -> Exception | None:
        return self.errors[0] if self.errors else None
