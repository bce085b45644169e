"""What a store keeps for each lock name: :class:`LockRecord`, and how an operator's pause is written into it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.lease import CLAIM_ID_BYTES
from shedlock_py.model.request import DEMOTED, LONGEST_HOLDER, PAUSED_BY, validate_name

LONGEST_OPERATOR = 100
"""Characters of who pauses a lock, so that a reason has room beside it."""
_BEFORE_REASON = ": "
ONCE = datetime(1970, 1, 2, 3, 4, 5, tzinfo=UTC)
"""The fire time of every run of ``run_once``. All runs of a key have it. Fire times of jobs are later."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A lock that an operator keeps, so that no job gets it. Its holder reads ``paused by alice@host: migration``.

    :ivar by: who has paused it.
    :ivar reason: why; empty if no reason was given.
    """

    by: str
    reason: str = ""

    @classmethod
    def validated(cls, by: object, reason: object = "") -> Pause:
        """A pause that a record can hold.

        :raises ConfigurationError: characters that not every store can carry; ``by`` is empty, over 100 characters
            long, or has a colon before a space, which begins the reason.
        """
        operator = validate_name(by, "by", LONGEST_OPERATOR).strip()
        if _BEFORE_REASON in operator:
            raise ConfigurationError(f"by must not contain {_BEFORE_REASON!r}, which begins the reason: {operator!r}")
        if isinstance(reason, str) and not reason.strip():
            return cls(operator)
        return cls(operator, validate_name(reason, "reason", sys.maxsize).strip())

    @classmethod
    def from_holder(cls, holder: str) -> Pause | None:
        """The pause that a holder names; None if it names a job's holder."""
        by, _, reason = holder.removeprefix(PAUSED_BY).partition(_BEFORE_REASON)
        return cls(by, reason) if by and holder.startswith(PAUSED_BY) else None

    @property
    def holder(self) -> str:
        """The pause as the holder of a record; a long reason is cut off."""
        text = f"{PAUSED_BY}{self.by}{_BEFORE_REASON if self.reason else ''}{self.reason}"
        return text if len(text) <= LONGEST_HOLDER else f"{text[: LONGEST_HOLDER - 3]}..."


@dataclass(frozen=True)
class LockRecord:
    """The lock record of one name, as the store had it when it was read. Times are aware UTC, of the store's clock."""

    name: str
    locked_by: str
    """Holder and claim id, ``"host:pid#…"``; in a record written by ShedLock for Java only the holder."""
    locked_at: datetime
    lock_until: datetime
    fencing_token: int | None
    """At least that of the last acquisition: some stores add 1 when the lock is freed. None: the store has none."""
    last_fire_time: datetime | None
    read_at: datetime = field(compare=False)
    """The store's clock when it was read."""
    is_released: bool | None = field(default=None, compare=False)
    """Whether the last acquisition was ended on purpose: released, undone, or freed by an operator. False: its holder
    runs, or has died. None: the record does not say, as one that ShedLock for Java wrote."""

    @property
    def holder(self) -> str:
        """Who acquired it last, for people to read."""
        return holder_of(self.locked_by)

    @property
    def acquisition(self) -> tuple[str, datetime | None, int | None]:
        """Holder, time and fencing token: they identify this acquisition.

        A holder without a claim id can acquire again with the same token. A claim id is unique, so the time is left
        out: the servers of a quorum have different times.
        """
        has_claim_id = holder_of(self.locked_by) != self.locked_by
        return self.locked_by, None if has_claim_id else self.locked_at, self.fencing_token

    @property
    def is_held(self) -> bool:
        """Whether the lock was held when the record was read."""
        return self.lock_until > self.read_at

    @property
    def is_done(self) -> bool:
        """Whether this is a key of ``run_once``, and its task has succeeded. After a pause, nobody knows."""
        is_over = self.is_released is True and not self.is_held and self.pause is None
        return is_over and self.last_fire_time == ONCE

    @property
    def recoveries(self) -> int:
        """How often the run of ``last_fire_time`` was recovered: each time, its holder had died or given it back."""
        return recoveries_of(self.locked_by)

    @property
    def pause(self) -> Pause | None:
        """Who has paused this lock, and why, until ``lock_until``; of a free lock the pause that ended last.

        None: its last holder was a job.
        """
        return Pause.from_holder(self.holder)

    @property
    def is_of_operator(self) -> bool:
        """Whether its last holder was a pause or a demotion, not a run."""
        return self.pause is not None or DEMOTED.fullmatch(self.holder) is not None

    @property
    def is_paused(self) -> bool:
        """Whether an operator's pause held the lock when the record was read."""
        return self.is_held and self.pause is not None

    @property
    def remaining(self) -> timedelta:
        """For how long it was still held when the record was read; zero when free."""
        return max(timedelta(0), self.lock_until - self.read_at)


def names_to_prune(records: Iterable[LockRecord], unused_for: timedelta) -> list[str]:
    """The names that ``prune(unused_for)`` deletes: they are free, and were last held so long ago or longer.

    Not the keys of ``run_once``: their tasks would run again.
    """
    return [
        record.name
        for record in records
        if record.lock_until <= record.read_at - unused_for and record.last_fire_time != ONCE
    ]


def holder_of(locked_by: str) -> str:
    """``locked_by`` without its claim id, if it has one."""
    holder, _, claim_id = locked_by.rpartition("#")
    has_claim_id = len(claim_id) == 2 * CLAIM_ID_BYTES and set(claim_id) <= set("0123456789abcdef")
    return holder if has_claim_id else locked_by


def recoveries_of(locked_by: str) -> int:
    """The number of recoveries in the claim id of ``locked_by``; 0 without a claim id."""
    claim_id = locked_by[len(holder_of(locked_by)) + 1 :]
    return int(claim_id[0], 16) if claim_id else 0
