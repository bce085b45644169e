"""What a store keeps for each lock name: :class:`LockRecord`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shedlock_py._values import Value
from shedlock_py.lease import _CLAIM_ID_BYTES
from shedlock_py.request import _ZERO


@dataclass(frozen=True, eq=False, repr=False)
class LockRecord(Value):
    """What the store has on one lock name, at the moment it was read. Times are aware UTC, of the store's clock."""

    name: str
    locked_by: str
    """Holder and claim id, ``"host:pid#…"``; a record written by ShedLock for Java has the holder only."""
    locked_at: datetime
    lock_until: datetime
    fencing_token: int | None
    last_fire_time: datetime | None
    read_at: datetime = field(compare=False)
    """The store's clock when it was read."""

    @property
    def holder(self) -> str:
        """Who acquired it last, for people to read."""
        holder, _, claim_id = self.locked_by.rpartition("#")
        is_ours = len(claim_id) == 2 * _CLAIM_ID_BYTES and set(claim_id) <= set("0123456789abcdef")
        return holder if is_ours else self.locked_by

    @property
    def is_held(self) -> bool:
        """Whether the lock was held when the record was read."""
        return self.lock_until > self.read_at

    @property
    def remaining(self) -> timedelta:
        """For how long it was still held when the record was read; zero when free."""
        return max(_ZERO, self.lock_until - self.read_at)
