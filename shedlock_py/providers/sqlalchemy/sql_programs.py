"""SQL operations: programs that yield statements and interpret the replies.

Each operation is one statement (SQLite's acquire reads first). It is idempotent per claim id, because the kit may
repeat an executed statement if its reply was lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar

from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.events import logger
from shedlock_py.model.durations import in_milliseconds
from shedlock_py.model.lease import Claim, Lease
from shedlock_py.model.record import ONCE, LockRecord
from shedlock_py.model.request import LockRequest
from shedlock_py.model.run import Run
from shedlock_py.providers.kit import Check, fire_time_too_late, given_back, undo_claimed
from shedlock_py.providers.sqlalchemy.checks import store_checks
from shedlock_py.providers.sqlalchemy.claims import TOO_LATE, ClaimKind
from shedlock_py.providers.sqlalchemy.clock import check_token, to_record, to_time
from shedlock_py.providers.sqlalchemy.runs import NAMES_AT_ONCE
from shedlock_py.providers.sqlalchemy.schema import other_zone_error, zone_shift
from shedlock_py.providers.sqlalchemy.sqlite_files import read_mounts
from shedlock_py.providers.sqlalchemy.statements import FirstRead, SqlCommand, Statement
from shedlock_py.providers.sqlalchemy.tables import SqlProgram, SqlTables


class SqlPrograms(SqlTables):
    """The programs for one table of one database."""

    keeps_history: ClassVar[bool] = True
    read_mounts = staticmethod(read_mounts)
    """Source of this process's mounts for :meth:`checks`. A test replaces it."""

    # The operations

    def claim(self, claim: Claim, *, before: LockRecord | None, force: bool) -> SqlProgram[int | None]:
        request, operation = claim.request, "take_over" if force else "acquire"
        values = self._claim_values(claim, before)
        if not self._is_prepared:
            yield from self._prepare(operation, request.name)
        read = self._sql.read_before_claim
        check = None
        if read is not None:
            check = FirstRead(SqlCommand(read, values), partial(self._may_claim, operation, request, force))
        kind = ClaimKind.ACQUIRE
        if force:
            kind = ClaimKind.TAKE_OVER_ABSENT if before is None else ClaimKind.TAKE_OVER
            kind = ClaimKind.RECOVER if claim.recoveries else kind
        statement = self._sql.claims[kind, request.fire_time is not None]
        command = SqlCommand(statement, values, can_grant=True, check=check)
        reply = yield command
        token = reply.id if statement.reply == "id" else reply.rows[0][0] if reply.rows else 0
        if token == TOO_LATE:
            raise fire_time_too_late(operation, request, self.fire_time_tolerance)
        if not token:
            return None
        try:
            granted = check_token(token, operation, request.name) if self.extra_columns else 0
        except ProviderError:
            if not force:  # after a take-over, the former holder may still trust its lease
                yield from undo_claimed(self, claim)
            raise
        if self._runs is not None:
            yield from self._write_history(_of_history(command, self._runs.begin))
        return granted

    def _may_claim(self, operation: str, request: LockRequest, force: bool, row: Sequence[Any]) -> bool:
        """Return whether the lock is free and the fire time was not granted. SQLite reads ``row`` before the claim.

        SQLite has one writer at a time, so a skip must not write. SQLite stores any value in any column and compares it
        with text, so the values are checked here.
        """
        is_held, is_late, name, lock_until, fencing_token, last_fire_time = row
        if is_late:
            raise fire_time_too_late(operation, request, self.fire_time_tolerance)
        if name is not None:
            to_time(lock_until, self._sql.clock, operation, request.name, "lock_until")
            check_token(fencing_token, operation, request.name)
            if last_fire_time is not None:
                to_time(last_fire_time, self._sql.clock, operation, request.name, "last_fire_time")
        return force or not is_held

    def _claim_values(self, claim: Claim, before: LockRecord | None) -> dict[str, object]:
        request, to_store = claim.request, self._sql.clock.to_store
        if request.fire_time is not None:
            self._require_fire_times()
        values: dict[str, object] = {
            "name": request.name,
            "locked_by": claim.locked_by,
            "hold_ms": in_milliseconds(request.lock_at_most_for),
            "tolerance_ms": in_milliseconds(self.fire_time_tolerance),
            "fire_time": request.fire_time and to_store(request.fire_time),
            "now_us": time.time_ns() // 1000,  # for SQLite, because its own clock has only milliseconds
        }
        if self._runs is not None:
            values["next_fire_time"] = request.next_fire_time and to_store(request.next_fire_time)
            values["kept"] = self.history
        if before is not None:
            values["before_locked_by"] = before.locked_by
            values["before_locked_at"] = to_store(before.locked_at)
            values["before_token"] = before.fencing_token
        return values

    def _require_fire_times(self) -> None:
        if not self.extra_columns:
            raise ConfigurationError("a fire time needs the column last_fire_time: not with extra_columns=False")

    def set_end(self, lease: Lease, lock_for: timedelta, *, releasing: bool) -> SqlProgram[bool]:
        if not self._is_located:
            yield from self.locate(is_urgent=True)
        values = {**identifiers(lease), "hold_ms": in_milliseconds(lock_for)}
        reply = yield SqlCommand(self._sql.release if releasing else self._sql.extend, values, is_urgent=True)
        return bool(reply.changed)

    def undo_claim(self, name: str, locked_by: str, former_fire_time: datetime | None) -> SqlProgram[bool]:
        yield from self.locate(is_urgent=True)
        former = former_fire_time and self._sql.clock.to_store(former_fire_time)
        values = {"name": name, "locked_by": locked_by, "former_fire_time": former}
        command = SqlCommand(self._sql.undo, values, is_urgent=True)
        reply = yield command
        if reply.changed and self._runs is not None:
            yield from self._write_history(_of_history(command, self._runs.remove))
        return bool(reply.changed)

    def free(self, record: LockRecord) -> SqlProgram[bool]:
        yield from self.locate(is_urgent=True)
        to_store, former = self._sql.clock.to_store, given_back(record)
        values: dict[str, object] = {
            "name": record.name,
            "locked_by": record.locked_by,
            "locked_at": to_store(record.locked_at),
            "fencing_token": record.fencing_token,
            "former_fire_time": former and to_store(former),
        }
        reply = yield SqlCommand(self._sql.free, values, is_urgent=True)
        return bool(reply.changed)

    def forget_fire_time(self, name: str, expected: LockRecord | None = None) -> SqlProgram[bool]:
        self._require_fire_times()
        return (yield from super().forget_fire_time(name, expected))

    def delete_fire_time(self, name: str, fire_time: datetime) -> SqlProgram[bool]:
        values = {"name": name, "fire_time": self._sql.clock.to_store(fire_time)}
        reply = yield SqlCommand(self._sql.delete_fire_time, values)
        return bool(reply.changed)

    def prune(self, unused_for: timedelta, prefix: str = "") -> SqlProgram[int]:
        yield from self._prepare("prune", None)
        if self._columns_in_session_zone:
            yield from self.records("", "prune")
        values: dict[str, object] = {"hold_ms": -in_milliseconds(unused_for), **_those_with(prefix)}
        if self._sql.extra_columns:
            values["once"] = self._sql.clock.to_store(ONCE)
        command = SqlCommand(self._sql.prune, values)
        reply = yield command
        if self._runs is not None:
            yield from self._write_history(SqlCommand(self._runs.prune))
        return reply.changed

    def record(self, name: str) -> SqlProgram[LockRecord | None]:
        yield from self._prepare("record", name)
        reply = yield SqlCommand(self._sql.record, {"name": name})
        if not reply.rows:
            return None
        record = to_record(reply.rows[0], self._sql.clock, "record")
        self._check_zone("record", record)
        return record if record.name == name else None  # the table's collation may ignore case

    def records(self, prefix: str, operation: str = "records") -> SqlProgram[list[LockRecord]]:
        """Return all records with the prefix. A record with an odd value is left out, with a warning."""
        yield from self._prepare(operation, None)
        reply = yield SqlCommand(self._sql.records, _those_with(prefix))
        records, odd = [], []
        for row in reply.rows:
            try:
                records.append(to_record(row, self._sql.clock, operation))
            except ProviderError as error:
                odd.append(str(error))
        if odd:
            logger.warning("left out of the records of table %s: %s", self.table_name, "; ".join(odd))
        for record in records:
            self._check_zone(operation, record)
        return records

    def _check_zone(self, operation: str, record: LockRecord) -> None:
        columns = self._columns_in_session_zone
        shift = zone_shift(record) if columns else None
        if shift is not None:
            raise other_zone_error(operation, record.name, shift, self.table_name, columns)

    # Run history: see runs.py

    def _write_history(self, command: SqlCommand) -> SqlProgram[None]:
        """Send ``command`` after the operation itself. If it fails, the operation is still done."""
        if self.is_history_on():
            try:
                yield command
            except ProviderError as error:
                self.history_failed(error)

    def end_run(self, lease: Lease, *, is_lost: bool) -> SqlProgram[None]:
        if self._runs is not None:
            end = {"outcome": "lost" if is_lost else lease.outcome, "error": lease.error}
            yield SqlCommand(self._runs.end, identifiers(lease) | end, is_history=True)

    def runs(self, name: str, limit: int) -> SqlProgram[list[Run]]:
        yield from self.locate()
        if self._runs is None:
            return []
        reply = yield SqlCommand(self._runs.read, {"name": name, "size": min(limit, self.history)})
        return [self._runs.to_run(row) for row in reply.rows]

    def recent_runs(self, names: Sequence[str], limit: int) -> SqlProgram[list[Run]]:
        yield from self.locate()
        found: list[Run] = []
        if self._runs is None:
            return found
        for start in range(0, len(names), NAMES_AT_ONCE):
            some = names[start : start + NAMES_AT_ONCE]
            filled = [*some, *[some[-1]] * (NAMES_AT_ONCE - len(some))]
            values = {f"name_{number}": name for number, name in enumerate(filled)}
            reply = yield SqlCommand(self._runs.read_recent, {**values, "size": limit})
            for row in reply.rows:
                try:
                    found.append(self._runs.to_run(row))
                except ProviderError as error:  # odd values of one name must not hide other names
                    logger.warning("%s", error)
        return found

    def checks(self) -> SqlProgram[list[Check]]:
        yield from self.locate()
        return (yield from store_checks(self, self._sql.table_name, self.read_mounts))

    @property
    def verify_sql(self) -> str:
        return self._sql.verify_sql


def identifiers(lease: Lease) -> dict[str, object]:
    """Return the values that identify the record of exactly this acquisition."""
    return {"name": lease.name, "locked_by": lease.locked_by, "fencing_token": lease.fencing_token}


def _of_history(command: SqlCommand, statement: Statement) -> SqlCommand:
    """Return ``statement`` with the values of ``command``, which was executed before."""
    return SqlCommand(statement, command.values, is_history=True)


def _those_with(prefix: str) -> dict[str, object]:
    return {"size": len(prefix), "prefix": prefix}
