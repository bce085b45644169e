"""The SQL with which a lock is claimed: acquire, and take over. One statement each, in the words of each database.

A claim that finds itself in the record was granted already, and its reply was lost: it keeps its token, and the time
that it may have been extended to, or freed at, meanwhile. So a late copy of a claim changes nothing.
"""

from __future__ import annotations

import enum

from shedlock_py.providers.sqlalchemy.clock import SqlClock

TOO_LATE = 2
"""In place of a fencing token: the fire time is later than the clock of the database allows.

Tokens are microseconds since 1970, and 1 means a grant of a table that keeps none.
"""


class Kind(enum.Enum):
    """When a claim is granted."""

    ACQUIRE = "the lock is free"
    TAKE_OVER = "the record is the one that was read before"
    TAKE_OVER_ABSENT = "there is no record, and there was none before"


class ClaimSql:
    """What the claims of all databases have in common.

    :param extra_columns: the table has fencing tokens and fire times.
    :param has_fire_time: the claim is for one fire time, which the table then has a column for.
    """

    def __init__(self, clock: SqlClock, kind: Kind, *, extra_columns: bool, has_fire_time: bool) -> None:
        self.clock = clock
        self.kind = kind
        self.extra_columns = extra_columns
        self.has_fire_time = has_fire_time

    def granted(self, record: str = "") -> str:
        clock, mine = self.clock, f"{record}locked_by = :locked_by"
        match self.kind:
            case Kind.ACQUIRE:
                newer = f" AND ({record}last_fire_time < {clock.fire_time}) IS NOT FALSE" if self.has_fire_time else ""
                return f"({mine} OR ({record}lock_until <= {clock.now}{newer}))"
            case Kind.TAKE_OVER:
                # ShedLock for Java leaves our token as it is. So the token alone does not tell one record from a later.
                same = f"{record}locked_by = :before_locked_by AND " + clock.same_time.format(
                    f"{record}locked_at", clock.moment.format("before_locked_at")
                )
                if self.extra_columns:
                    same += f" AND {record}fencing_token {clock.is_same} {clock.number.format('before_token')}"
                return f"({mine} OR ({same}))"
            case Kind.TAKE_OVER_ABSENT:
                return f"({mine})"

    def next_token(self, record: str = "") -> str:
        clock = self.clock
        return f"{clock.greatest}(COALESCE({record}fencing_token, 0) + 1, {clock.microseconds})"

    def newest_fire_time(self, record: str = "") -> str:
        clock = self.clock
        stored, given = f"{record}last_fire_time", clock.fire_time
        return f"COALESCE({clock.greatest}({stored}, {given}), {stored}, {given})"


class ReturningSql(ClaimSql):
    """PostgreSQL and SQLite. Replies with a row: the token. No row: not granted."""

    def sql(self, *, skips_first: bool, refuses_late: bool) -> str:
        """:param skips_first: look whether the lock is held or the fire time was granted, before anything is locked.
        :param refuses_late: reply :data:`TOO_LATE` for such a fire time; else it was looked at before."""
        conditions = []
        if refuses_late and self.has_fire_time:
            conditions.append(f"NOT {self.clock.is_late}")
        if skips_first and self.kind is Kind.ACQUIRE:
            ran = f" OR last_fire_time >= {self.clock.fire_time}" if self.has_fire_time else ""
            conditions.append(
                f"NOT EXISTS (SELECT 1 FROM {{table}} WHERE name = :name AND locked_by <> :locked_by "
                f"AND (lock_until > {self.clock.now}{ran}))"
            )
        claim = self._update(conditions) if self.kind is Kind.TAKE_OVER else self._insert(conditions)
        if not (refuses_late and self.has_fire_time):
            return claim
        return (
            f"WITH granted AS ({claim}) SELECT fencing_token FROM granted "
            f"UNION ALL SELECT {TOO_LATE} WHERE {self.clock.is_late}"
        )

    def _insert(self, conditions: list[str]) -> str:
        clock = self.clock
        columns = ["name", "lock_until", "locked_at", "locked_by"]
        values = [clock.text.format("name"), "{until}", clock.now, clock.text.format("locked_by")]
        if self.extra_columns:
            columns.append("fencing_token")
            values.append(clock.microseconds)
        if self.has_fire_time:
            columns.append("last_fire_time")
            values.append(clock.fire_time)
        return (
            f"INSERT INTO {{table}} AS record ({', '.join(columns)}) SELECT {', '.join(values)} "
            f"WHERE {' AND '.join(conditions) or '1 = 1'} "  # without WHERE, SQLite takes ON for that of a join
            f"ON CONFLICT (name) DO UPDATE SET {self._changes()} WHERE {self.granted('record.')} {self._reply()}"
        )

    def _update(self, conditions: list[str]) -> str:
        conditions = ["record.name = :name", self.granted("record."), *conditions]
        return f"UPDATE {{table}} AS record SET {self._changes()} WHERE {' AND '.join(conditions)} {self._reply()}"

    def _changes(self) -> str:
        new = {"lock_until": "{until}", "locked_at": self.clock.now}
        if self.extra_columns:
            new["fencing_token"] = self.next_token("record.")
        if self.has_fire_time:
            new["last_fire_time"] = self.newest_fire_time("record.")
        mine = "record.locked_by = :locked_by"
        changes = [f"{column} = CASE WHEN {mine} THEN record.{column} ELSE {new[column]} END" for column in new]
        return ", ".join([*changes, "locked_by = :locked_by"])

    def _reply(self) -> str:
        return "RETURNING fencing_token" if self.extra_columns else "RETURNING 1"


class MySqlSql(ClaimSql):
    """MySQL and MariaDB, which have no RETURNING in common.

    ``LAST_INSERT_ID(x)`` sends the number x back with the reply: the token, 1 where the table keeps none,
    :data:`TOO_LATE`, or 0: not granted.

    Columns are assigned from left to right, and a condition sees those that were assigned before it; unless the mode
    SIMULTANEOUS_ASSIGNMENT is on. Each order of assignments below is right both ways.
    """

    def sql(self) -> str:
        return self._update() if self.kind is Kind.TAKE_OVER else self._insert()

    def _insert(self) -> str:
        clock = self.clock
        columns, values = ["name", "lock_until", "locked_by"], [":name", "{until}", ":locked_by"]
        if self.extra_columns:
            columns += ["fencing_token", "locked_at"]
            values += [f"LAST_INSERT_ID({clock.microseconds})", clock.now]
        else:
            columns.append("locked_at")
            values.append(f"IF(LAST_INSERT_ID(1) = 1, {clock.now}, NULL)")
        if not self.has_fire_time:
            source = f"VALUES ({', '.join(values)})"
        else:
            columns.append("last_fire_time")
            values.append(clock.fire_time)
            is_right = f"IF({clock.is_late}, LAST_INSERT_ID({TOO_LATE}) = 0, 1 = 1)"
            source = f"SELECT {', '.join(values)} FROM DUAL WHERE {is_right}"
        changes = self._unchanged() if self.kind is Kind.TAKE_OVER_ABSENT else self._acquired()
        return f"INSERT INTO {{table}} ({', '.join(columns)}) {source} ON DUPLICATE KEY UPDATE {', '.join(changes)}"

    def _unchanged(self) -> list[str]:
        """Somebody has made a record since there was none: granted only if that was this claim."""
        if self.extra_columns:
            number = "LAST_INSERT_ID(IF(locked_by = :locked_by, fencing_token, 0))"
            return [f"fencing_token = IF({number} = 0, fencing_token, fencing_token)"]
        return ["locked_at = IF(LAST_INSERT_ID(IF(locked_by = :locked_by, 1, 0)) = 0, locked_at, locked_at)"]

    def _acquired(self) -> list[str]:
        """Once locked_by is this claim's, it was granted; conditions before that see the record as it was."""
        clock, granted = self.clock, self.granted()
        until = "GREATEST(lock_until, {until})"
        began = f"IF(locked_by = :locked_by, locked_at, {clock.now})"
        changes = []
        if self.extra_columns:
            token = f"IF(locked_by = :locked_by, fencing_token, {self.next_token()})"
            # 0 first: NULL + f() would not call f.
            refused = "LAST_INSERT_ID(0) + fencing_token"
            changes += [
                f"fencing_token = IF({granted}, LAST_INSERT_ID({token}), {refused})",
                f"locked_at = IF({granted}, {began}, locked_at)",
            ]
        else:
            changes.append(f"locked_at = IF(LAST_INSERT_ID(IF({granted}, 1, 0)) = 1, {began}, locked_at)")
        changes.append(f"locked_by = IF({granted}, :locked_by, locked_by)")
        if self.extra_columns:
            # Whose it was cannot be told from locked_by any more. But a token of before now was not given now.
            was_mine = f"locked_by = :locked_by AND fencing_token < {clock.microseconds}"
            until = f"IF({was_mine}, lock_until, {until})"
            if self.has_fire_time:
                newest = f"IF({was_mine}, last_fire_time, {self.newest_fire_time()})"
                changes.append(f"last_fire_time = IF({granted}, {newest}, last_fire_time)")
        return [*changes, f"lock_until = IF({granted}, {until}, lock_until)"]

    def _update(self) -> str:
        """``locked_by`` last: all the others see whose the record was."""
        clock = self.clock
        stays = "locked_by = :locked_by"
        if self.has_fire_time:
            stays = f"({clock.is_late} OR {stays})"
        new = {"lock_until": "{until}"}
        if self.has_fire_time:
            new["last_fire_time"] = self.newest_fire_time()
        if self.extra_columns:
            number = f"IF(locked_by = :locked_by, fencing_token, {self.next_token()})"
            token = f"LAST_INSERT_ID({number})"
            if self.has_fire_time:
                token = f"IF({clock.is_late}, IF(LAST_INSERT_ID({TOO_LATE}) = 0, NULL, fencing_token), {token})"
            changes = [f"fencing_token = {token}"]
            new["locked_at"] = clock.now
        else:
            changes = [f"locked_at = IF(LAST_INSERT_ID(1) = 1, IF({stays}, locked_at, {clock.now}), NULL)"]
        changes += [f"{column} = IF({stays}, {column}, {new[column]})" for column in new]
        changes.append(f"locked_by = IF({stays}, locked_by, :locked_by)")
        return f"UPDATE {{table}} SET {', '.join(changes)} WHERE name = :name AND {self.granted()}"
