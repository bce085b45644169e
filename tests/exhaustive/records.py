"""The lock record in the model stores, and the effects of the real commands on it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from tests.exhaustive.claimant import Claimants
from tests.exhaustive.run import LOCK
from tests.exhaustive.times import STEP_US, STORE_NOW_US, TICK_US
from tests.simulation.stores import ModelStore
from tests.simulation.stores.times import EPOCH

NOBODY = -1


@dataclass(frozen=True, eq=False)
class Record:
    """A lock record. Equal records are one object.

    ``stored`` is the store's record, with the end of the lease moved to a whole tick.
    """

    stored: Hashable
    holder: int
    """The number of the claimant."""
    left: int
    """Ticks until the lease ends; 0: the lock is free."""
    token: int


_Change = Callable[[Any, int], Any]


@dataclass
class Records:
    """Executes commands on a record. The effect of a command on a record is computed once."""

    name: str
    store: ModelStore
    claimants: Claimants
    step_us: int = STEP_US
    """Microseconds by which the store's clock advances with each grant."""
    executions: int = 0
    met: dict[Hashable, Record] = field(default_factory=dict)
    """All records that were met."""
    _outcomes: dict[tuple[Record, int, int], tuple[Record, int]] = field(default_factory=dict)

    def execute(self, record: Record, command: int, grants: int) -> tuple[Record, int]:
        """Return the record after the command, and the number of the reply.

        :param grants: how often the lock was granted before. The store's clock advances with each grant, or stands
            still.
        """
        outcome = self._outcomes.get((record, command, grants))
        if outcome is None:
            self.executions += 1
            self.store.restore(record.stored)
            now_us = STORE_NOW_US + STEP_US + grants * self.step_us
            reply = self.store.execute(self.claimants.commands[command], now_us)
            outcome = self._record(), self.claimants.reply(reply)
            self._outcomes[record, command, grants] = outcome
        return outcome

    def later(self, record: Record) -> Record:
        """Return the record after a tick."""
        return record if not record.left else self._with_left(record, record.left - 1)

    def freed(self, record: Record) -> Record:
        """Return the record after an operator's force release, by the real program."""
        if not record.left:
            return record
        self.store.restore(record.stored)
        program = self.claimants.programs.force_release(LOCK)
        command = next(program)
        while True:
            try:
                command = program.send(self.store.execute(command, STORE_NOW_US + STEP_US))
            except StopIteration:
                return self._record()

    def deleted(self, record: Record) -> Record:
        """Return the record after an operator has deleted it."""
        stored = ((), record.stored[1]) if self.name == "memory" else ()  # type: ignore[index]  # it keeps the last token
        return self._kept(stored, NOBODY, 0, 0)

    def __post_init__(self) -> None:
        self.none = self._record()
        """The state without a record."""

    def _with_left(self, record: Record, left: int) -> Record:
        stored = _SET_END[self.name](record.stored, STORE_NOW_US + left * TICK_US)
        return self._kept(stored, record.holder, left, record.token)

    def _kept(self, stored: Hashable, holder: int, left: int, token: int) -> Record:
        record = self.met.get(stored)
        if record is None:
            record = self.met[stored] = Record(stored, holder, left, token)
        return record

    def _record(self) -> Record:
        stored = self.store.snapshot()
        read = _READ[self.name](stored)
        if read is None:
            return self._kept(stored, NOBODY, 0, 0)
        locked_by, until_us, token = read
        left = max(0, round((until_us - STORE_NOW_US) / TICK_US))
        holder = int(locked_by.rpartition("-")[2].partition("#")[0])
        stored = _SET_END[self.name](stored, STORE_NOW_US + left * TICK_US)
        return self._kept(stored, holder, left, token)


# By store, a function that reads the holder, the end in microseconds, and the token, or None; and one that sets the
# end.

_Read = tuple[str, int, int] | None


def _microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def _moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def _read_sql(rows: Any) -> _Read:
    if not rows:
        return None
    [(_, until, _, locked_by, token, _)] = rows
    return locked_by, _microseconds(datetime.fromisoformat(f"{until}+00:00")), token


def _set_sql(rows: Any, until_us: int) -> Any:
    [(name, _, *others)] = rows
    return ((name, _moment(until_us).strftime("%Y-%m-%d %H:%M:%S.%f"), *others),)


def _read_redis(rows: Any) -> _Read:
    if not rows:
        return None
    [(_, _, items)] = rows
    fields = dict(items)
    return fields[b"locked_by"].decode(), int(fields[b"lock_until"]), int(fields[b"fencing_token"])


def _set_redis(rows: Any, until_us: int) -> Any:
    """The expiry of the key, 30 days later, is left out."""
    [(key, _, items)] = rows
    return ((key, None, tuple(sorted({**dict(items), b"lock_until": b"%d" % until_us}.items()))),)


def _read_mongodb(rows: Any) -> _Read:
    document = dict(rows[0][1]) if rows else {}
    if "lockedBy" not in document:  # a take-over of a deleted record can leave an empty document
        return None
    return document["lockedBy"], _microseconds(document["lockUntil"]), document["fencingToken"]


def _set_mongodb(rows: Any, until_us: int) -> Any:
    [(name, items)] = rows
    return ((name, tuple({**dict(items), "lockUntil": _moment(until_us)}.items())),)


def _read_memory(snapshot: Any) -> _Read:
    if not snapshot[0]:
        return None
    [(_, record)], _ = snapshot
    return record.locked_by, _microseconds(record.lock_until), record.fencing_token


def _set_memory(snapshot: Any, until_us: int) -> Any:
    [(name, record)], last_token = snapshot
    return ((name, replace(record, lock_until=_moment(until_us))),), last_token


_READ: dict[str, Callable[[Any], _Read]] = {
    "sql": _read_sql, "redis": _read_redis, "mongodb": _read_mongodb, "memory": _read_memory,
}  # fmt: skip
_SET_END: dict[str, _Change] = {
    "sql": _set_sql, "redis": _set_redis, "mongodb": _set_mongodb, "memory": _set_memory,
}  # fmt: skip
