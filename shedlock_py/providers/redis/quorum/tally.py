"""The votes of a quorum's servers, counted."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
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


@dataclass
class VoteTally:
    """The replies to a vote for the claim :attr:`locked_by`: each a pair of ``quorum_vote.lua``, or an error."""

    locked_by: bytes
    replies: Sequence[Any]
    token: int = 0
    """The greatest that any of the voters could give."""
    voters: frozenset[int] = frozenset()
    errors: list[Exception] = field(default_factory=list)
    """Of the servers that did not vote, nor give a reason."""
    _run_ids: list[bytes] = field(default_factory=list)
    _leases: Counter[bytes] = field(default_factory=Counter)
    _votes: Counter[bytes] = field(default_factory=Counter)
    _ran: int = 0
    _too_late: int = 0
    _quarantines: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number, reply in enumerate(self.replies):
            if isinstance(reply, Exception):
                self.errors.append(reply)
                continue
            kind, detail, *run_id = reply
            if kind == VOTED:
                self.voters |= {number}
                self.token = max(self.token, detail)
                self._run_ids += run_id
            elif kind == HELD:
                self._leases[detail] += 1
            elif kind == OTHER:
                self._votes[detail] += 1
            elif kind == RAN:
                self._ran += 1
            elif kind == TOO_LATE:
                self._too_late += 1
            else:
                self._quarantines.append(detail)

    def verdict(self) -> Verdict:
        return self._verdict(len(self.errors))

    def is_settled(self) -> bool:
        """Whether the replies that are missing, should they come yet, need not be waited for."""
        return self._verdict(0) is self.verdict()

    def _verdict(self, missing: int) -> Verdict:
        silent = missing + len(self._quarantines)
        if len(self.voters) >= self._majority:
            return Verdict.WON
        if len(self.replies) - missing < self._majority:
            return Verdict.IMPOSSIBLE  # too few to know that it is held, or that it ran
        # Servers that are silent, or have forgotten, may be with a claim that is known to have others.
        if any(count + self._votes[claim] + silent >= self._majority for claim, count in self._leases.items()):
            return Verdict.SKIP
        if any(count + self._leases[claim] >= self._majority for claim, count in self._votes.items()):
            return Verdict.SKIP
        if self._ran >= self._majority:  # on fewer, a claim that failed may have left it
            return Verdict.SKIP
        if len(self.replies) - silent - self._ran - self._too_late < self._majority:
            return Verdict.IMPOSSIBLE
        return Verdict.SPLIT

    @property
    def _majority(self) -> int:
        return len(self.replies) // 2 + 1

    @property
    def same_server(self) -> bool:
        """Whether a server has voted twice, under two names: then there is no majority."""
        return len(set(self._run_ids)) < len(self._run_ids)

    def is_ahead(self) -> bool:
        """Whether this claim keeps its votes for the next round of a split. One claim must; the others give way."""

        def rank(claim: bytes, votes: int) -> tuple[int, bytes]:
            return votes, claim[-32:]  # the claim id is random, which is fair

        mine = rank(self.locked_by, len(self.voters))
        return all(mine > rank(claim, count) for claim, count in self._votes.items())

    def is_too_late(self) -> bool:
        """Whether it is the fire time that leaves no majority: the servers that replied nothing else are enough."""
        silent = len(self.errors) + len(self._quarantines)
        return self._too_late > 0 and len(self.replies) - silent - self._ran >= self._majority

    def why_not(self) -> str:
        """Why no claim can have a majority now, for people."""
        size = len(self.replies)
        reasons = [failures(self.errors, size)] if self.errors else []
        if self._quarantines:
            wait = timedelta(seconds=min(self._quarantines) // 1000)
            reasons.append(
                f"{len(self._quarantines)} of {size} are in quarantine for {wait} or longer, because they were emptied "
                f"or restarted and may have forgotten a lease (a new quorum: call start_new_quorum() once, by hand)"
            )
        return "; ".join(reasons)

    @property
    def cause(self) -> Exception | None:
        return self.errors[0] if self.errors else None
