"""The SQL that claims a lock, for acquire and take over: one statement each.

If the record already has the claim's id, the lock was granted before and the reply was lost. The statement then grants
it again and changes nothing, neither the token nor the end of the lease. So a late copy of a claim is harmless.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from shedlock_py.providers.sqlalchemy.clock import SqlClock

TOO_LATE = 2
"""Replies to a claim:

==============  ==================================================================================
greater than 2  granted: the fencing token, in microseconds since 1970
1               granted, in a table without tokens
0, no row       not granted (0 on MySQL and MariaDB, no row elsewhere)
``TOO_LATE``    not granted: the fire time is later than the database's clock allows
==============  ==================================================================================
"""


class ClaimKind(enum.Enum):
    """The condition for a grant."""

    ACQUIRE = "the lock is free"
    TAKE_OVER = "the record is the one that was read before"
    TAKE_OVER_ABSENT = "there is no record, and there was none before"
    RECOVER = "the record is the one that was read before, and its lease has ended"


@dataclass(frozen=True)
class ClaimSql:
    """The parts of a claim that all databases share.

    :param extra_columns: the table has fencing tokens and fire times.
    :param has_fire_time: the claim has a fire time, and the table has a column for it.
    """

    clock: SqlClock
    kind: ClaimKind
    extra_columns: bool
    has_fire_time: bool

    def granted(self, record: str = "") -> str:
        """Return the condition for a grant. ``record`` is the prefix of the record's columns."""
        clock, repeated = self.clock, f"{record}locked_by = :locked_by"
        match self.kind:
            case ClaimKind.ACQUIRE:
                newer = f" AND ({record}last_fire_time < {clock.fire_time}) IS NOT FALSE" if self.has_fire_time else ""
                return f"({repeated} OR ({record}lock_until <= {clock.now}{newer}))"
            case ClaimKind.TAKE_OVER | ClaimKind.RECOVER:
                # ShedLock for Java does not change the token, so the token alone does not identify a record.
                same = f"{record}locked_by = :before_locked_by AND " + clock.same_time.format(
                    f"{record}locked_at", clock.moment.format("before_locked_at")
                )
                if self.extra_columns:
                    same += f" AND {record}fencing_token {clock.is_same} {clock.number.format('before_token')}"
                if self.kind is ClaimKind.RECOVER:
                    same += f" AND {record}lock_until <= {clock.now}"
                return f"({repeated} OR ({same}))"
            case ClaimKind.TAKE_OVER_ABSENT:
                return f"({repeated})"

    def next_token(self, record: str = "") -> str:
        """Return an even token. The statement that frees the lock makes it odd: see ``RELEASED_TOKEN``."""
        clock = self.clock
        return clock.even.format(f"{clock.greatest}(COALESCE({record}fencing_token, 0) + 1, {clock.microseconds})")

    def newest_fire_time(self, record: str = "") -> str:
        clock = self.clock
        stored, given = f"{record}last_fire_time", clock.fire_time
        return f"COALESCE({clock.greatest}({stored}, {given}), {stored}, {given})"


def returning_claim(claim: ClaimSql, *, checks_first: bool) -> str:
    """Return the claim for PostgreSQL and SQLite. It replies with the token, or with no row if it is not granted.

    :param checks_first: before it locks a row, find out whether the lock is held or the fire time is too late.
    """
    clock, kind, has_fire_time = claim.clock, claim.kind, claim.has_fire_time
    conditions = []
    refuses_late = checks_first and has_fire_time
    if refuses_late:
        conditions.append(f"NOT {clock.is_late}")
    if checks_first and kind is ClaimKind.ACQUIRE:
        ran = f" OR last_fire_time >= {clock.fire_time}" if has_fire_time else ""
        conditions.append(
            f"NOT EXISTS (SELECT 1 FROM {{table}} WHERE name = :name AND locked_by <> :locked_by "
            f"AND (lock_until > {clock.now}{ran}))"
        )
    new = {"lock_until": "{until}", "locked_at": clock.now}
    if claim.extra_columns:
        new["fencing_token"] = claim.next_token("record.")
    if has_fire_time:
        new["last_fire_time"] = claim.newest_fire_time("record.")
    repeated = "record.locked_by = :locked_by"
    changes = [f"{column} = CASE WHEN {repeated} THEN record.{column} ELSE {new[column]} END" for column in new]
    change = f"UPDATE SET {', '.join([*changes, 'locked_by = :locked_by'])} WHERE {claim.granted('record.')}"
    if kind in (ClaimKind.TAKE_OVER, ClaimKind.RECOVER):
        sql = change.replace("UPDATE", "UPDATE {table} AS record", 1)
        sql = " AND ".join([sql, "record.name = :name", *conditions])
    else:
        sql = f"{_insert(claim, conditions)} ON CONFLICT (name) DO {change}"
    token = "fencing_token" if claim.extra_columns else "1"
    if not refuses_late:
        return f"{sql} RETURNING {token}"
    return (
        f"WITH granted AS ({sql} RETURNING {token}) SELECT {token} FROM granted "
        f"UNION ALL SELECT {TOO_LATE} WHERE {clock.is_late}"
    )


def _insert(claim: ClaimSql, conditions: list[str]) -> str:
    clock = claim.clock
    columns = ["name", "lock_until", "locked_at", "locked_by"]
    values = [clock.text.format("name"), "{until}", clock.now, clock.text.format("locked_by")]
    if claim.extra_columns:
        columns.append("fencing_token")
        values.append(clock.even.format(clock.microseconds))
    if claim.has_fire_time:
        columns.append("last_fire_time")
        values.append(clock.fire_time)
    return (
        f"INSERT INTO {{table}} AS record ({', '.join(columns)}) SELECT {', '.join(values)} "
        f"WHERE {' AND '.join(conditions) or '1 = 1'}"  # without WHERE, SQLite reads ON as part of a join
    )


# MySQL and MariaDB share no RETURNING. LAST_INSERT_ID(x) sends x with the reply: the token, 1 in a table without
# tokens, TOO_LATE, or 0 (not granted). MySQL assigns columns from left to right, and a condition sees the new values of
# earlier columns, except in the mode SIMULTANEOUS_ASSIGNMENT. The orders below are right in both modes.


def mysql_insert(claim: ClaimSql) -> str:
    clock = claim.clock
    columns, values = ["name", "lock_until", "locked_by"], [":name", "{until}", ":locked_by"]
    if claim.extra_columns:
        columns += ["fencing_token", "locked_at"]
        values += [f"LAST_INSERT_ID({clock.even.format(clock.microseconds)})", clock.now]
    else:
        columns.append("locked_at")
        values.append(f"IF(LAST_INSERT_ID(1) = 1, {clock.now}, NULL)")
    if not claim.has_fire_time:
        source = f"VALUES ({', '.join(values)})"
    else:
        columns.append("last_fire_time")
        values.append(clock.fire_time)
        is_in_time = f"IF({clock.is_late}, LAST_INSERT_ID({TOO_LATE}) = 0, 1 = 1)"
        source = f"SELECT {', '.join(values)} FROM DUAL WHERE {is_in_time}"
    changes = _mysql_unchanged(claim) if claim.kind is ClaimKind.TAKE_OVER_ABSENT else _mysql_acquired(claim)
    return f"INSERT INTO {{table}} ({', '.join(columns)}) {source} ON DUPLICATE KEY UPDATE {', '.join(changes)}"


def _mysql_unchanged(claim: ClaimSql) -> list[str]:
    """Return the assignments for a record that did not exist before: grant it only if this claim created it."""
    if claim.extra_columns:
        number = "LAST_INSERT_ID(IF(locked_by = :locked_by, fencing_token, 0))"
        return [f"fencing_token = IF({number} = 0, fencing_token, fencing_token)"]
    return ["locked_at = IF(LAST_INSERT_ID(IF(locked_by = :locked_by, 1, 0)) = 0, locked_at, locked_at)"]


def _mysql_acquired(claim: ClaimSql) -> list[str]:
    """Return the assignments. Those after ``locked_by`` see the id of this claim if it is granted."""
    clock, granted = claim.clock, claim.granted()
    until = "GREATEST(lock_until, {until})"
    began = f"IF(locked_by = :locked_by, locked_at, {clock.now})"
    changes = []
    if claim.extra_columns:
        token = f"IF(locked_by = :locked_by, fencing_token, {claim.next_token()})"
        refused = "LAST_INSERT_ID(0) + fencing_token"  # 0 is first: NULL + f() would not call f
        changes += [
            f"fencing_token = IF({granted}, LAST_INSERT_ID({token}), {refused})",
            f"locked_at = IF({granted}, {began}, locked_at)",
        ]
    else:
        changes.append(f"locked_at = IF(LAST_INSERT_ID(IF({granted}, 1, 0)) = 1, {began}, locked_at)")
    changes.append(f"locked_by = IF({granted}, :locked_by, locked_by)")
    if claim.extra_columns:
        # From here on, locked_by does not show whether this claim was granted earlier. A token from the past does.
        was_granted_before = f"locked_by = :locked_by AND fencing_token < {clock.microseconds}"
        until = f"IF({was_granted_before}, lock_until, {until})"
        if claim.has_fire_time:
            newest = f"IF({was_granted_before}, last_fire_time, {claim.newest_fire_time()})"
            changes.append(f"last_fire_time = IF({granted}, {newest}, last_fire_time)")
    return [*changes, f"lock_until = IF({granted}, {until}, lock_until)"]


def mysql_update(claim: ClaimSql) -> str:
    """Return the take-over. It assigns ``locked_by`` last, so all other assignments see its old value."""
    clock = claim.clock
    stays = f"({clock.is_late} OR locked_by = :locked_by)" if claim.has_fire_time else "locked_by = :locked_by"
    new = {"lock_until": "{until}"}
    if claim.has_fire_time:
        new["last_fire_time"] = claim.newest_fire_time()
    if claim.extra_columns:
        token = f"LAST_INSERT_ID(IF(locked_by = :locked_by, fencing_token, {claim.next_token()}))"
        if claim.has_fire_time:
            token = f"IF({clock.is_late}, IF(LAST_INSERT_ID({TOO_LATE}) = 0, NULL, fencing_token), {token})"
        changes = [f"fencing_token = {token}"]
        new["locked_at"] = clock.now
    else:
        changes = [f"locked_at = IF(LAST_INSERT_ID(1) = 1, IF({stays}, locked_at, {clock.now}), NULL)"]
    changes += [f"{column} = IF({stays}, {column}, {new[column]})" for column in new]
    changes.append(f"locked_by = IF({stays}, locked_by, :locked_by)")
    return f"UPDATE {{table}} SET {', '.join(changes)} WHERE name = :name AND {claim.granted()}"
