"""Holds: the store may have kept others out of a lock. A skip during a hold is right."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.faults.history import History, Operation
from tests.faults.leases import Arrivals, LeaseHistory, longer_by

if TYPE_CHECKING:
    from tests.faults.checker import Rules

INFINITY = float("inf")
Hold = tuple[float, float, bool]
"""Begin, end, and whether the holder died meanwhile."""


def holds_of(attempts: list[Operation], leases: list[LeaseHistory], history: History, rules: Rules) -> Iterator[Hold]:
    """Yield the holds of all leases, and of acquires that may have been granted although their callers do not know."""
    arrivals = Arrivals(history, late=rules.late, grace=rules.grace)
    deaths = {mark.worker: mark.after for mark in history.marks if mark.kind == "killed"}
    for lease in leases:
        until = lease.held_until(arrivals, rules.prompt, rules.kept)
        slower = rules.drift * (until - lease.acquire.started) if rules.drift else 0.0
        yield lease.acquire.started, until + slower, lease.died < INFINITY
    late_copies = LateCopies(attempts, history, rules)
    for attempt in attempts:
        yield from late_copies.holds_of(attempt)
        if attempt.outcome not in ("granted", "skipped") and attempt.at_store is None:
            # The store may have granted it, or a quorum may wait for it.
            arrives = arrivals.of_failed(attempt, deaths.get(attempt.worker, INFINITY))
            longest = longer_by(rules.kept, max(attempt.at_most, rules.vote), attempt)
            yield attempt.started, arrives + longest * (1 + rules.drift), attempt.ended is None
        elif attempt.ended is not None and attempt.end - attempt.started >= min(rules.prompt, attempt.at_most):
            # Longer than its lease: the first copy may have been granted and have expired before the second was
            # skipped.
            yield attempt.started, attempt.end, False


class LateCopies:
    """Possible effects of late copies of acquires, where the moments at which they reached the store are known."""

    def __init__(self, attempts: list[Operation], history: History, rules: Rules) -> None:
        self._rules = rules
        self._prunes = history.of("prune")
        self._changes = sorted(
            (moment, attempt.started)
            for attempt in attempts
            for moment in attempt.at_store or ()
            if attempt.outcome != "skipped" or moment > attempt.decided
        )
        """When a request that may have been granted reached the store, and when its acquire began."""

    def holds_of(self, attempt: Operation) -> Iterator[Hold]:
        for moment in attempt.at_store or ():
            is_late = moment > attempt.decided
            if attempt.outcome == "skipped" and not is_late:
                continue
            if attempt.outcome == "granted" and not (is_late and self._is_gone(attempt, moment)):
                continue  # it was the grant, or found its own record, and changed nothing
            until = moment + attempt.at_most * (1 + self._rules.drift)
            if self._rules.kept:  # the request carries the end of the lease, by the time of the request before it
                until += self._rules.kept + min(moment, attempt.end) - attempt.started
            # An undo may arrive before the acquire; then only the end of the lease frees the name.
            undone_by = () if attempt.undone_at else (max(moment, attempt.undone_by),)
            undone = min([undo for undo in (*attempt.undone_at, *undone_by) if undo >= moment], default=until)
            yield moment, min(until, undone), attempt.ended is None

    def _is_gone(self, attempt: Operation, moment: float) -> bool:
        """Whether the record of a granted ``attempt`` may have been replaced or deleted by ``moment``."""
        first = bisect_right(self._changes, (attempt.granted_by, INFINITY))
        changes = self._changes[first : bisect_right(self._changes, (moment, INFINITY))]
        return any(started != attempt.started for _, started in changes) or any(
            prune.started < moment and prune.end > attempt.started for prune in self._prunes
        )


def longer(one: Hold, other: Hold) -> Hold:
    return one if one[1] >= other[1] else other
