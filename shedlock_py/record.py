"""What a store keeps for each lock name: :class:`LockRecord`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shedlock_py.lease import CLAIM_ID_BYTES


@dataclass(frozen=True)
class LockRecord:
    """The lock record of one name, as the store had it when it was read. Times are aware UTC, of the store's clock."""

    name: str
    locked_by: str
    """Holder and claim id, ``"host:pid#…"``; in a record written by ShedLock for Java only the holder."""
    locked_at: datetime
    lock_until: datetime
    fencing_token: int | None
    last_fire_time: datetime | None
    read_at: datetime = field(compare=False)
    """The store's clock when it was read."""

    @property
    def holder(self) -> str:
        """Who acquired it last, for people to read."""
        return holder_of(self.locked_by)

    @property
    def is_held(self) -> bool:
        """Whether the lock was held when the record was read."""
        return self.lock_until > self.read_at

    @property
    def remaining(self) -> timedelta:
        """For how long it was still held when the record was read; zero when free."""
        return max(timedelta(0), self.lock_until - self.read_at)


def holder_of(locked_by: str) -> str:
    """``locked_by`` without its claim id, if it has one."""
    holder, _, claim_id = locked_by.rpartition("#")
    has_claim_id = len(claim_id) == 2 * CLAIM_ID_BYTES and set(claim_id) <= set("0123456789abcdef")
    return holder if has_claim_id else locked_by
