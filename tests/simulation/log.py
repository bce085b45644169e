"""The events of a simulation: the history for the checker, and lines for people."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shedlock_py import Lease
from tests.faults.history import NEVER, Mark, Operation
from tests.simulation.schedule import Entry

INFINITY = float("inf")


class EventLog:
    """The lines of the timeline. There are millions, so they are formatted only when they are read."""

    def __init__(self, keep: int | None) -> None:
        """:param keep: number of last lines to keep; None: all."""
        self._lines: deque[tuple[float, str, str, tuple[Any, ...]]] = deque(maxlen=keep)
        self.counts: Counter[str] = Counter()

    def add(self, at: float, who: str, text: str, *values: Any) -> None:
        self._lines.append((at, who, text, values))

    def entries(self) -> list[Entry]:
        return [Entry(at, who, text.format(*values)) for at, who, text, values in self._lines]


class Recorder:
    """The history in the form of ``tests.faults.history``, in memory. Its clock is virtual time."""

    def __init__(self) -> None:
        self.ended: dict[int, Operation] = {}
        self.under_way: dict[int, Operation] = {}
        self.marks: list[Mark] = []
        self._number = 0
        self._arrivals: dict[int, list[float]] = {}
        """When the copies of an operation's requests reached the store."""
        self._replies: dict[int, float] = {}
        """When the store carried out the copy that the program last got a reply to."""
        self._undos: dict[int, list[float]] = {}
        self._requests: Counter[int] = Counter()
        """Number of requests that were sent for an operation that is under way."""

    def begin(self, operation: Operation) -> int:
        self._number += 1
        self.under_way[self._number] = operation
        self._arrivals[self._number], self._undos[self._number] = [], []
        return self._number

    def end(
        self,
        number: int,
        at: float,
        outcome: str,
        lease: Lease | None = None,
        trusted_until: float = NEVER,
        error: str = "",
        undone_by: float = INFINITY,
    ) -> Operation:
        begun = self.under_way.pop(number)
        claim, token = (begun.claim, begun.token) if lease is None else (lease.claim_id, lease.fencing_token)
        operation = Operation(
            begun.worker, begun.kind, begun.name, begun.started, at, outcome, claim, token, begun.at_most,
            begun.at_least, begun.trusted_before, trusted_until, begun.keep_alive, begun.fire_time, error,
            self._arrivals[number], self._undos[number], undone_by, self._replies.pop(number, None),
            self._requests.pop(number, 0),
        )  # fmt: skip
        self.ended[number] = operation
        return operation

    def note(self, operation: Operation) -> None:
        """Add an operation that took no time."""
        self._number += 1
        self.ended[self._number] = operation

    def kind(self, number: int) -> str:
        """Return the kind of the operation with that number; empty if it is not recorded."""
        operation = self.under_way.get(number) or self.ended.get(number)
        return "" if operation is None else operation.kind

    def arrived(self, number: int, at: float) -> None:
        """Note that a copy of a request of that operation has reached the store."""
        moments = self._arrivals.get(number)
        if moments is not None:
            moments.append(at)

    def sent(self, number: int) -> None:
        """Note that the program has sent a request of that operation."""
        if number in self.under_way:
            self._requests[number] += 1

    def replied(self, number: int, at: float) -> None:
        """Note that the program has the reply to the copy that reached the store at ``at``."""
        if number in self.under_way:
            self._replies[number] = at

    def undo_arrived(self, number: int, at: float, *, has_changed: bool) -> None:
        """Note that an undo of that operation, perhaps a second copy, has reached the store.

        If it has changed nothing, it counts only before the operation itself, which then is never undone.
        """
        if not has_changed and self._arrivals.get(number):
            return
        operation = self.under_way.get(number) or self.ended.get(number)
        if operation is not None and operation.kind not in ("acquire", "take_over"):
            if has_changed:
                self.arrived(number, at)
        elif number in self._arrivals:
            self._undos[number].append(at)

    def mark(self, kind: str, worker: str, before: float, after: float) -> None:
        self.marks.append(Mark(kind, worker, before, after))

    def died(self, worker: str, at: float) -> None:
        """Keep the operations of a dead process: they never end, and nobody undoes them any more."""
        for number, operation in self.ended.items():
            if operation.worker == worker and at <= operation.undone_by < INFINITY:
                self.ended[number] = replace(operation, undone_by=INFINITY)
        for number in [number for number, operation in self.under_way.items() if operation.worker == worker]:
            operation = self.under_way.pop(number)
            moments, undos = self._arrivals[number], self._undos[number]
            self._replies.pop(number, None)
            self._requests.pop(number, None)
            self.ended[number] = replace(operation, at_store=moments, undone_at=undos)

    def forget(self, is_old: Callable[[Operation], bool]) -> None:
        """Drop operations that were judged and have no effect any more."""
        self.ended = {number: operation for number, operation in self.ended.items() if not is_old(operation)}
        self._arrivals = {
            number: moments
            for number, moments in self._arrivals.items()
            if number in self.ended or number in self.under_way
        }
        self._undos = {number: self._undos[number] for number in self._arrivals}
