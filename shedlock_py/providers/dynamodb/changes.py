"""Changes of an item: the decision of an operation, as a condition and an update."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from shedlock_py.model.lease import Claim, Lease
from shedlock_py.model.record import LockRecord
from shedlock_py.providers.dynamodb.wire import (
    CLAIM_MARK,
    KEPT_FOR,
    Change,
    Entry,
    microseconds,
    milliseconds,
    parse_moment,
    surely_past,
)
from shedlock_py.providers.kit import given_back

# A lease that was not released must be in ``:seen``: it is replaced only after two replies agree on the time.
_IS_FREE = (
    "(attribute_not_exists(lockUntil) OR (lockUntil <= :now AND endedBy = lockedBy) OR lockUntil = :seen"
    " OR (releasedBy = lockedBy AND contains(lockedBy, :mark)))"
)
# I7. This also stops a late copy of a claim: its token was used by the first copy.
_IS_NEWER = "(attribute_not_exists(fencingToken) OR fencingToken < :fencingToken)"
_IS_NOT_RELEASED = "(attribute_not_exists(releasedBy) OR releasedBy <> lockedBy)"
_IS_NOT_ENDED = "(attribute_not_exists(endedBy) OR endedBy <> lockedBy)"
_IS_DEAD = f"(lockUntil <= :now OR lockUntil = :seen) AND {_IS_NOT_RELEASED} AND {_IS_NOT_ENDED}"
"""The lease has ended without a release."""
_IS_NEXT_FIRE_TIME = "(attribute_not_exists(lastFireTime) OR lastFireTime < :lastFireTime)"
_GRANT = (
    "SET lockUntil = :lockUntil, lockedAt = :lockedAt, lockedBy = :lockedBy, fencingToken = :fencingToken, "
    "leaseVersion = :leaseVersion, expiresAt = :expiresAt"
)


class Written(NamedTuple):
    """The holder's last write, in ``lease._note``. Its next write replaces exactly this.

    :ivar version: grows with each write, because two writes may have the same ``lock_until``. None if the item lacks
        it.
    """

    locked_at: datetime
    lock_until: str
    version: int | None = None


def claiming(
    claim: Claim, before: LockRecord | None, token: int, written: Written, now: datetime, seen: str, *, force: bool
) -> Change:
    """Return the request that grants the lock to ``claim``.

    :param now: the earliest time that it can be.
    :param seen: a ``lockUntil`` that has passed, although it may be greater as text.
    """
    fire_time, condition, update = claim.request.fire_time, f"{_IS_FREE} AND {_IS_NEWER}", _GRANT
    values: dict[str, str | int] = {
        "lockUntil": written.lock_until,
        "lockedAt": milliseconds(written.locked_at),
        "lockedBy": claim.locked_by,
        "fencingToken": token,
        "leaseVersion": written.version or 0,
        "expiresAt": _expires_at(written.lock_until),
    }
    if claim.recoveries or not force:
        values["now"], values["seen"] = surely_past(now), seen
    if not force:
        values["mark"] = CLAIM_MARK
        if fire_time is not None:
            condition += f" AND {_IS_NEXT_FIRE_TIME}"
    elif before is None:
        condition = "attribute_not_exists(#key)"
    else:
        if before.last_fire_time and (fire_time is None or fire_time < before.last_fire_time):
            fire_time = before.last_fire_time
        condition = "attribute_exists(#key) AND attribute_not_exists(fencingToken)"
        if before.fencing_token is not None:
            condition, values["before"] = "fencingToken = :before", before.fencing_token
        # ShedLock for Java does not change the token.
        condition, values["former"] = f"{condition} AND lockedBy = :former", before.locked_by
        if CLAIM_MARK not in before.locked_by:
            condition, values["since"] = f"{condition} AND lockedAt = :since", milliseconds(before.locked_at)
        if claim.recoveries:
            condition += f" AND {_IS_DEAD}"
    if fire_time is not None:
        update += ", lastFireTime = :lastFireTime"
        values["lastFireTime"] = microseconds(fire_time)
    return Change(claim.request.name, f"{update} REMOVE releasedBy, endedBy", condition, values, can_grant=True)


def holding(lease: Lease, known: Written, written: Written, mark: str | None) -> Change:
    """Let ``lease`` end as in ``written`` if the item is as in ``known``. So a late copy does not match.

    :param mark: the attribute that marks a release.
    """
    update = "SET lockUntil = :lockUntil, leaseVersion = :leaseVersion, expiresAt = :expiresAt"
    update += f", {mark} = lockedBy" if mark else ""
    values: dict[str, str | int] = {
        "lockUntil": written.lock_until,
        "leaseVersion": written.version or 0,
        "expiresAt": _expires_at(written.lock_until),
        "lockedBy": lease.locked_by,
        "fencingToken": lease.fencing_token or 0,
        "known": known.lock_until,
    }
    condition = "lockedBy = :lockedBy AND fencingToken = :fencingToken AND lockUntil = :known"
    if known.version is None:
        condition += " AND attribute_not_exists(leaseVersion)"
    else:
        condition, values["version"] = f"{condition} AND leaseVersion = :version", known.version
    return Change(lease.name, update, condition, values)


def undoing(name: str, locked_by: str, former_fire_time: datetime | None = None) -> Change:
    """Free the lock if ``locked_by`` still has it. With a fire time, only if the item has a later fire time."""
    update, condition = "SET lockUntil = lockedAt, releasedBy = lockedBy", "lockedBy = :lockedBy"
    values: dict[str, str | int] = {"lockedBy": locked_by}
    if former_fire_time is not None:
        update, condition = f"{update}, lastFireTime = :former", f"{condition} AND lastFireTime > :former"
        values["former"] = microseconds(former_fire_time)
    return Change(name, update, condition, values)


def freeing(record: LockRecord) -> Change:
    """Free the lock of ``record`` for an operator, if the item still has that acquisition and was not released."""
    update = "SET lockUntil = lockedAt, releasedBy = lockedBy"
    values: dict[str, str | int] = {"lockedBy": record.locked_by, "lockedAt": milliseconds(record.locked_at)}
    condition = f"lockedBy = :lockedBy AND lockedAt = :lockedAt AND {_IS_NOT_RELEASED}"
    if record.fencing_token is None:
        condition += " AND attribute_not_exists(fencingToken)"
    else:
        condition, values["token"] = f"{condition} AND fencingToken = :token", record.fencing_token
    former = given_back(record)
    if former is not None:
        update, condition = f"{update}, lastFireTime = :given", f"{condition} AND {_IS_NOT_ENDED}"
        values["given"] = microseconds(former)
    return Change(record.name, update, condition, values)


def freeing_from_java(entry: Entry, until: datetime) -> Change:
    """Let the acquisition of ``entry`` end at ``until``, a time that has passed on all servers.

    For an acquisition of ShedLock for Java: its ``lockedBy`` does not change with the host's next acquisition, so
    ``releasedBy`` would free that one, too.
    """
    values: dict[str, str | int] = {
        "lockUntil": milliseconds(until),
        "lockedBy": entry.record.locked_by,
        "lockedAt": entry.locked_at,
    }
    condition = "lockedBy = :lockedBy AND lockedAt = :lockedAt"
    return Change(entry.record.name, "SET lockUntil = :lockUntil", condition, values)


def _expires_at(lock_until: str) -> int:
    return int((parse_moment(lock_until) + KEPT_FOR).timestamp())
