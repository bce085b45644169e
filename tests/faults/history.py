"""Histories: every operation of every worker, with the moments before and after it.

All processes of a trial append to one file. A line is one unbuffered write, so that it is complete however the process
ends. An operation has two lines; an operation that never ended (its process was killed) has only the first. The clock
is the clock by which leases are trusted, the same for all processes of the machine.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shedlock_py import Lease
from shedlock_py.runtime.process import monotonic as monotonic  # the clock of trust windows; not public

NEVER = float("-inf")
"""``trusted_until`` of a lease that is not trusted any more."""
EVERY_WORKER = "everybody"
"""The worker of a mark that concerns all workers."""
DISTURBED = "disturbed"
"""The kind of a mark for a disturbance. It lasts while requests of its worker are held back or its connections broken,
and until the last of the requests has arrived."""


@dataclass(frozen=True)
class Operation:
    """An operation of a worker. Times are seconds of the common clock.

    ============= ==================================================================================
    kind          outcome
    ============= ==================================================================================
    acquire       granted, skipped, error, cancelled
    take_over     granted, error, cancelled: an acquire by force
    recover       granted, skipped, error, cancelled: the run of a dead holder
    extend        done, lost, error, cancelled
    release       done, lost, error, cancelled
    write         done, refused: a fenced write
    check         trusted, untrusted: the result of ``lease.is_trusted()``
    force_release done, free, error, cancelled: whoever holds it
    prune         done, nothing, error, cancelled: of all names, so it has no name
    once          ran, learned, raised, error, cancelled: a call of ``run_once``; in a simulation also
                  stuck: it was not done in time, although nothing was wrong
    record        done, error, cancelled: a read of the lock record
    task          done, error: the task of a call of ``run_once``
    ============= ==================================================================================

    An error leaves open whether the store carried out the operation. The outcome is None if it never ended.
    """

    worker: str
    kind: str
    name: str
    started: float
    ended: float | None = None
    outcome: str | None = None
    claim: str = ""
    """The claim id of the lease; empty for an acquire that was not granted."""
    token: int | None = None
    at_most: float = 0.0
    """The ``lock_at_most_for`` of the acquire or the extend."""
    at_least: float = 0.0
    trusted_before: float = NEVER
    """``lease.trusted_until`` when it began."""
    trusted_until: float = NEVER
    """``lease.trusted_until`` when it ended."""
    keep_alive: bool = False
    fire_time: float | None = None
    """The fire time of the acquire, if it had one: seconds since 1970."""
    error: str = ""
    at_store: Sequence[float] | None = None
    """When copies of its requests reached the store, in order. A simulation knows it; None if unknown."""
    undone_at: Sequence[float] = ()
    """When undos of this acquire reached the store."""
    undone_by: float = float("inf")
    """The latest moment of the undo of an acquire that failed or was cancelled while no message was disturbed."""
    replied_at: float | None = None
    """When the store carried out the copy that was replied to, if that is known."""
    requests: int = 1
    """The number of requests that the program has sent for it, where known. Some may not have reached the store."""

    @property
    def arrived(self) -> float:
        """When the last copy reached the store, if that is known."""
        return self.at_store[-1] if self.at_store else NEVER

    @property
    def is_undone(self) -> bool:
        """Whether an undo reached the store after the acquire itself."""
        return bool(self.undone_at) and (not self.at_store or self.undone_at[-1] >= self.at_store[-1])

    @property
    def granted_from(self) -> float:
        """The earliest moment of the grant of an acquire that was granted."""
        return self.at_store[0] if self.at_store else self.started

    @property
    def granted_by(self) -> float:
        """The latest moment of the grant of an acquire that was granted."""
        if self.replied_at is not None:
            return self.replied_at
        return max([moment for moment in self.at_store or () if moment <= self.end], default=self.end)

    @property
    def decided(self) -> float:
        """Copies that reach the store later have effects that the reply does not mention."""
        return self.end if self.replied_at is None else self.replied_at

    @property
    def late_copies(self) -> tuple[float, ...]:
        """When copies reached the store that have effects the reply does not mention."""
        return tuple(moment for moment in self.at_store or () if moment > self.decided)

    @property
    def end(self) -> float:
        """When it ended, or infinity if it never did."""
        return float("inf") if self.ended is None else self.ended


@dataclass(frozen=True)
class Mark:
    """A fault from outside, such as killed, stopped, resumed, cut or healed, at some moment between the two times.

    :data:`DISTURBED` lasts from the first time to the second.
    """

    kind: str
    worker: str
    before: float
    after: float


@dataclass(frozen=True)
class History:
    operations: tuple[Operation, ...]
    """In the order in which they began."""
    marks: tuple[Mark, ...] = ()

    def of(self, *kinds: str, outcome: str | None = None, worker: str | None = None) -> list[Operation]:
        return [
            operation
            for operation in self.operations
            if operation.kind in kinds
            and (outcome is None or operation.outcome == outcome)
            and (worker is None or operation.worker == worker)
        ]


class Logbook:
    """One process's part of the history. Thread-safe."""

    def __init__(self, path: Path, worker: str) -> None:
        self.worker = worker
        # Not a bare descriptor: after close(), another logbook may get its number, and late lines would go there.
        self._file = path.open("ab", buffering=0)
        self._numbers = itertools.count()

    def mark(self, kind: str, worker: str, before: float) -> None:
        self._write({"mark": kind, "of": worker, "before": before, "after": monotonic()})

    @contextmanager
    def operation(self, kind: str, name: str, lease: Lease | None = None, **asked: Any) -> Iterator[Entry]:
        """Record the block as an operation. The block sets the outcome of the entry."""
        entry = Entry()
        if lease is not None:
            asked |= {"claim": lease.claim_id, "token": lease.fencing_token, "trusted_before": lease.trusted_until}
        number = next(self._numbers)
        self._write({"number": number, "started": monotonic(), "kind": kind, "name": name, **asked})
        entry.lease = lease
        try:
            yield entry
        except Exception as error:
            entry.outcome, entry.error = "error", f"{type(error).__name__}: {error}"[:200]
            raise
        except BaseException:
            entry.outcome = "cancelled"
            raise
        finally:
            ended = monotonic()
            known: dict[str, Any] = {"error": entry.error} if entry.error else {}
            if entry.lease is not None:
                known |= {"claim": entry.lease.claim_id, "token": entry.lease.fencing_token}
                known["trusted_until"] = entry.lease.trusted_until
            self._write({"number": number, "ended": ended, "outcome": entry.outcome, **known})

    def close(self) -> None:
        self._file.close()

    def _write(self, facts: dict[str, Any]) -> None:
        self._file.write(f"{json.dumps({'worker': self.worker, **facts})}\n".encode())


class Entry:
    outcome = ""
    error = ""
    lease: Lease | None = None


class Reader:
    """Reads a history file that is still being written. Each :meth:`update` continues after the previous update."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._operations: dict[tuple[str, int], Operation] = {}
        self._marks: list[Mark] = []
        self.holding: dict[str, Operation] = {}
        """By worker: the acquire of the lease that it has not begun to release. Removed when the worker's next acquire
        starts: the guard has then undone a grant that came too late."""
        self.trusted_until: dict[str, float] = {}
        """By worker: ``trusted_until`` of the last lease that it was granted, or has extended."""
        self._under_way: Counter[str] = Counter()
        self.last_grants: dict[str, float] = {}
        """By lock name: the last known moment of a grant."""
        self.last_writes: dict[str, int] = {}
        """By lock name: the highest fencing token of an accepted write."""
        self.counts: Counter[tuple[str, str, str | None]] = Counter()
        """By worker, kind and outcome: the number of operations."""

    def update(self) -> Reader:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._position)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # being written
                    self._position += len(line)
                    self._take(json.loads(line))
        return self

    def is_busy(self, worker: str) -> bool:
        return self._under_way[worker] > 0

    def history(self) -> History:
        operations = sorted(self._operations.values(), key=lambda operation: operation.started)
        return History(tuple(operations), tuple(self._marks))

    def _take(self, facts: dict[str, Any]) -> None:
        worker = facts.pop("worker")
        if "mark" in facts:
            self._marks.append(Mark(facts["mark"], facts["of"], facts["before"], facts["after"]))
            return
        key = (worker, facts.pop("number"))
        if "started" in facts:
            operation = self._operations[key] = Operation(worker, **facts)
            self._under_way[worker] += 1
            held = self.holding.get(worker)
            if held and (operation.kind == "release" or (operation.kind == "acquire" and held.keep_alive)):
                del self.holding[worker]
        else:
            operation = self._operations[key] = replace(self._operations[key], **facts)
            self._under_way[worker] -= 1
            self.counts[worker, operation.kind, operation.outcome] += 1
            if operation.outcome == ("done" if operation.kind == "extend" else "granted"):
                self.trusted_until[worker] = operation.trusted_until
            if operation.kind in ("acquire", "take_over", "recover") and operation.outcome == "granted":
                self.holding[worker] = operation
                self.last_grants[operation.name] = operation.end
            if operation.kind == "write" and operation.outcome == "done" and operation.token is not None:
                self.last_writes[operation.name] = max(operation.token, self.last_writes.get(operation.name, 0))
