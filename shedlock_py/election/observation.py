"""A node's observation of the lock record. With ``takeover="observed"`` it decides when a leader has died."""

from __future__ import annotations

from dataclasses import dataclass

from shedlock_py.election.settings import DRIFT_FACTOR, ElectionSettings
from shedlock_py.model.lease import Clock, Lease
from shedlock_py.model.record import LockRecord


@dataclass
class Observation:
    """The last record that a node has read, and how long it has not changed by the node's own clock."""

    settings: ElectionSettings
    clock: Clock
    record: LockRecord | None = None
    _requested_at: float = 0.0
    _received_at: float = 0.0
    _unchanged_since: float = 0.0
    _known_since: float = 0.0

    def update(self, record: LockRecord | None, requested_at: float) -> None:
        """Remember a record that the node has just read."""
        before, self.record = self.record, record
        passed = requested_at - self._received_at
        self._requested_at, self._received_at = requested_at, self.clock()
        if record is None or before is None or record.locked_by != before.locked_by:
            self._known_since = self._received_at
        if record is None or record != before:
            self._unchanged_since = self._received_at
        if before is not None and record is not None and self.was_released(before, record, passed):
            self._unchanged_since = float("-inf")

    def is_free(self) -> bool:
        """Return whether a node may acquire the lease, by the last record."""
        if self.record is None:
            return True
        return not self.record.is_held and (self.settings.takeover == "expired" or self.is_overdue())

    def is_overdue(self) -> bool:
        """Return whether, with ``takeover="observed"``, no leader has renewed for a whole lease by this node's clock.

        A pause is not renewed: it holds until its end by the store's clock.
        """
        if self.record is not None and self.record.is_paused:
            return False
        unchanged = self.clock() - self._unchanged_since
        lease = self.settings.durations.lease_duration.total_seconds()
        return self.settings.takeover == "observed" and unchanged > lease

    def former_trust_ends(self) -> float:
        """Return when a leader before the observed holder has stopped trusting its lease, on the node's own clock.

        The observed holder may never have led. An acquire without a reply is undone, which looks like a release. And a
        jump of the store's clock can have ended the lease of a leader that such an acquire replaced.
        """
        return self._known_since + self.settings.durations.renew_deadline.total_seconds() * DRIFT_FACTOR

    def is_recent(self) -> bool:
        """Return whether a record was read within the last retry period."""
        age = self.clock() - self._requested_at
        return self.record is not None and age <= self.settings.durations.retry_period.total_seconds()

    def precedes(self, lease: Lease, record: LockRecord | None) -> bool:
        """Return whether ``lease`` directly replaced the observed lease. ``record`` was read after ``lease`` was
        granted.

        Another leader in between would have kept its lease for longer than the time that has passed on the store's
        clock.
        """
        return (
            self.record is not None
            and record is not None
            and record.locked_by == lease.locked_by
            and abs(record.locked_at - self.record.read_at) < self.settings.durations.renew_deadline
        )

    def was_released(self, before: LockRecord, record: LockRecord, passed: float) -> bool:
        """Return whether the leader released its lease between two reads.

        At least ``passed`` seconds went by between the reads, on this node's clock. After a release, the lease ends
        earlier than before. But a jump of the store's clock may have ended it instead.
        """
        jumped = (record.read_at - before.read_at).total_seconds() - passed
        durations = self.settings.durations
        return (
            not record.is_held
            and before.locked_by == record.locked_by
            and before.read_at <= record.lock_until < before.lock_until
            and jumped < (durations.lease_duration - durations.renew_deadline).total_seconds()
        )
