"""Demotions in lock records, and the leader that a record names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from shedlock_py.election.settings import DRIFT_FACTOR
from shedlock_py.model.durations import LONGEST, in_milliseconds
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import DEMOTED, LONGEST_HOLDER, LockRequest, request_for_operator


@dataclass(frozen=True, slots=True)
class Demotion:
    """A lock record that keeps an election without a leader for a while. Its holder reads ``demoted 10000ms node-1``.

    :ivar leader: the demoted node.
    :ivar cooldown: how long that node is not a candidate.
    """

    leader: str
    cooldown: timedelta

    @property
    def holder(self) -> str:
        """The demotion as the holder of a record. A long name of the leader is cut off."""
        return f"demoted {in_milliseconds(self.cooldown)}ms {self.leader}"[:LONGEST_HOLDER]

    @classmethod
    def from_record(cls, record: LockRecord) -> Demotion | None:
        """Return the demotion in a record, or None if a node holds the record."""
        found = DEMOTED.fullmatch(record.holder)
        if found is None:
            return None
        milliseconds, leader = found.groups()
        # Another program may have written any number, and int() refuses thousands of digits.
        return cls(leader, timedelta(milliseconds=min(int(milliseconds[:20]), in_milliseconds(LONGEST))))

    def request(self, name: str, renew_deadline: timedelta) -> LockRequest:
        """Return the request that takes the lease until the demoted leader has stopped trusting its own lease."""
        return request_for_operator(name, renew_deadline * DRIFT_FACTOR, self.holder)

    def cooldown_of(self, holder: str) -> timedelta:
        """Return how long ``holder`` is not a candidate; zero if another node was demoted."""
        return self.cooldown if self.holder == Demotion(holder, self.cooldown).holder else timedelta(0)


def leader_of(record: LockRecord | None) -> LockRecord | None:
    """Return ``record`` if it names a leader."""
    if record is None or not record.is_held or record.is_paused:
        return None
    return record if Demotion.from_record(record) is None else None
