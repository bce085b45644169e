"""The lock record of a name, and an operator's pause in it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.lease import CLAIM_ID_BYTES
from shedlock_py.model.request import DEMOTED, LONGEST_HOLDER, PAUSED_BY, validate_name

LONGEST_OPERATOR = 100
"""Characters of the operator's name, so that a reason has room beside it."""
_BEFORE_REASON = ": "
ONCE = datetime(1970, 1, 2, 3, 4, 5, tzinfo=UTC)
"""The fire time of every run of ``run_once``, for all keys. Fire times of jobs are later."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A lock that an operator keeps, so that no job gets it. Its holder reads ``paused by alice@host: migration``.

    :ivar by: the operator.
    :ivar reason: the operator's reason, or an empty text.
    """

    by: str
    reason: str = ""

    @classmethod
    def validated(cls, by: object, reason: object = "") -> Pause:
        """Return a pause that a record can hold.

        :raises ConfigurationError: a text has characters that some stores cannot store; or ``by`` is empty, over 100
            characters long, or has a colon before a space, which begins the reason.
        """
        operator = validate_name(by, "by", LONGEST_OPERATOR).strip()
        if _BEFORE_REASON in operator:
            raise ConfigurationError(f"by must not contain {_BEFORE_REASON!r}, which begins the reason: {operator!r}")
        if isinstance(reason, str) and not reason.strip():
            return cls(operator)
        return cls(operator, validate_name(reason, "reason", sys.maxsize).strip())

    @classmethod
    def from_holder(cls, holder: str) -> Pause | None:
        """Return the pause that ``holder`` describes; None if it is the holder of a job."""
        by, _, reason = holder.removeprefix(PAUSED_BY).partition(_BEFORE_REASON)
        return cls(by, reason) if by and holder.startswith(PAUSED_BY) else None

    @property
    def holder(self) -> str:
        """The pause as the holder of a record. A long reason is cut off."""
        text = f"{PAUSED_BY}{self.by}{_BEFORE_REASON if self.reason else ''}{self.reason}"
        return text if len(text) <= LONGEST_HOLDER else f"{text[: LONGEST_HOLDER - 3]}..."


@dataclass(frozen=True)
class LockRecord:
    """The lock record of one name. Times are aware UTC, of the store's clock."""

    name: str
    locked_by: str
    """Holder and claim id, ``"host:pid#…"``; in a record written by ShedLock for Java only the holder."""
    locked_at: datetime
    lock_until: datetime
    fencing_token: int | None
    """The last acquisition's token or more, because some stores add 1 when the lock is freed; None if the store keeps
    no token."""
    last_fire_time: datetime | None
    read_at: datetime = field(compare=False)
    """The store's clock when the record was read."""
    is_released: bool | None = field(default=None, compare=False)
    """Whether the last acquisition was ended on purpose: released, undone, or freed by an operator. It is False if the
    holder runs or has died, and None if the record does not say so, for example if ShedLock for Java wrote it."""

    @property
    def holder(self) -> str:
        """The last holder, for people to read."""
        return holder_of(self.locked_by)

    @property
    def acquisition(self) -> tuple[str, datetime | None, int | None]:
        """Holder, time and fencing token: they identify this acquisition.

        A holder without a claim id can acquire again with the same token. A claim id is unique, so the time is left
        out: the servers of a quorum have different times.
        """
        return self.locked_by, None if self.has_claim_id else self.locked_at, self.fencing_token

    @property
    def has_claim_id(self) -> bool:
        """Whether this library wrote the record. ShedLock for Java writes no claim ids."""
        return holder_of(self.locked_by) != self.locked_by

    @property
    def is_held(self) -> bool:
        """Whether the lock was held when the record was read."""
        return self.lock_until > self.read_at

    @property
    def is_done(self) -> bool:
        """Whether this is a key of ``run_once`` with a task that succeeded. After a pause, that is not known."""
        is_over = self.is_released is True and not self.is_held and self.pause is None
        return is_over and self.last_fire_time == ONCE

    @property
    def recoveries(self) -> int:
        """How often the run of ``last_fire_time`` was recovered, because its holder had died or had given it back."""
        return recoveries_of(self.locked_by)

    @property
    def pause(self) -> Pause | None:
        """The pause that holds this lock until ``lock_until``; for a free lock, the pause that ended last.

        It is None if the last holder was a job.
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
        """How long the lock was still held when the record was read; zero if it was free."""
        return max(timedelta(0), self.lock_until - self.read_at)


def names_to_prune(records: Iterable[LockRecord], unused_for: timedelta) -> list[str]:
    """Return the names that ``prune(unused_for)`` deletes: they are free, and were last held at least so long ago.

    Keys of ``run_once`` are kept: their tasks would run again.
    """
    return [
        record.name
        for record in records
        if record.lock_until <= record.read_at - unused_for and record.last_fire_time != ONCE
    ]


def holder_of(locked_by: str) -> str:
    """Return ``locked_by`` without its claim id."""
    holder, _, claim_id = locked_by.rpartition("#")
    has_claim_id = len(claim_id) == 2 * CLAIM_ID_BYTES and set(claim_id) <= set("0123456789abcdef")
    return holder if has_claim_id else locked_by


def recoveries_of(locked_by: str) -> int:
    """Return the number of recoveries in the claim id of ``locked_by``; 0 without a claim id."""
    claim_id = locked_by[len(holder_of(locked_by)) + 1 :]
    return int(claim_id[0], 16) if claim_id else 0
