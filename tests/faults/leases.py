"""The leases of a history: how long holders trusted them, and how long the store can have kept others out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from shedlock_py.model.request import trust_ends
from tests.faults.history import DISTURBED, EVERY_WORKER, NEVER, History, Mark, Operation

INFINITY = float("inf")
ROUNDING = 0.005
"""Seconds: stores round their clocks to the millisecond."""
SLOW = 0.01
"""A holder's clock is slow by this part at most."""


class Arrivals:
    """The latest moments at which the store may carry out requests.

    ``late``: how long a request may be under way after its sender gave up or died. A disturbance ends when no request
    that was held back is under way any more. ``grace`` covers a driver that gives up first and closes its connection a
    moment later.
    """

    def __init__(self, history: History, *, late: float = 0.0, grace: float = 0.0) -> None:
        self._late, self._grace = late, grace
        self._disturbances = [mark for mark in history.marks if mark.kind == DISTURBED]

    def of_failed(self, operation: Operation, dead: float = INFINITY) -> float:
        """``dead``: when the process of the operation was gone."""
        end = min(operation.end, dead)
        disturbances = self._met_by(operation, end)
        if any(end <= mark.after for mark in disturbances):
            return self._over(disturbances)
        return max(end + self._late, operation.arrived)

    def of_answered(self, operation: Operation) -> float:
        """Where connections break, a driver sends a request twice, and the first copy may arrive last."""
        if operation.at_store:
            return operation.arrived
        return max(operation.end, self._over(self._met_by(operation, operation.end)))

    def _met_by(self, operation: Operation, end: float) -> list[Mark]:
        if not self._disturbances:
            return []
        return [
            mark
            for mark in self._disturbances
            if mark.worker in (operation.worker, EVERY_WORKER)
            and operation.started <= mark.after
            and end >= mark.before
        ]

    def _over(self, disturbances: list[Mark]) -> float:
        return max((mark.after + self._grace for mark in disturbances), default=NEVER)


@dataclass
class LeaseHistory:
    """A granted acquire, and everything that its holder did with the lease."""

    acquire: Operation
    extends: list[Operation] = field(default_factory=list)
    releases: list[Operation] = field(default_factory=list)
    checks: list[Operation] = field(default_factory=list)
    died: float = INFINITY
    """The last moment at which its process was certainly alive."""
    dead: float = INFINITY
    """The first moment at which its process was certainly gone."""

    def __str__(self) -> str:
        return f"{self.worker}'s lease {self.acquire.claim[:6]} (token {self.token})"

    @property
    def name(self) -> str:
        return self.acquire.name

    @property
    def worker(self) -> str:
        return self.acquire.worker

    @property
    def token(self) -> int | None:
        return self.acquire.token

    @property
    def known_at(self) -> float:
        """When its holder knew of the grant. The store had granted it earlier."""
        return self.acquire.end

    # How long its holder trusted it

    def trusted(self) -> list[tuple[float, float]]:
        """The spans in which its holder certainly trusted it. It may have trusted it before and after them."""
        return [(begin, end) for begin, end in self._spans() if begin < end]

    def _spans(self) -> Iterator[tuple[float, float]]:
        limit = min(self.died, *(release.started for release in self.releases), INFINITY)
        # Between two sightings of trusted_until, the first value holds, unless an extension narrowed it. The smallest
        # possible value counts.
        begin, until = self.acquire.granted_by, self.acquire.trusted_until
        for moment, seen, is_answer in self._sightings():
            if moment >= limit:
                break
            caps = [until, moment, *self._narrowed(begin, moment)]
            if not is_answer or seen != NEVER:
                caps.append(seen)
            yield begin, min(caps)
            begin, until = moment, seen
        yield begin, min(until, limit, *self._narrowed(begin, limit))

    def _sightings(self) -> list[tuple[float, float, bool]]:
        sightings = [(extend.started, extend.trusted_before, False) for extend in self.extends]
        sightings += [(extend.end, extend.trusted_until, True) for extend in self.extends if extend.ended is not None]
        return sorted(sightings)

    def _narrowed(self, begin: float, end: float) -> list[float]:
        """The smallest values of ``trusted_until`` while extensions are under way between these moments."""
        return [
            trust_ends(extend.started, timedelta(seconds=extend.at_most))
            for extend in self.extends
            if extend.started < end and extend.end > begin
        ]

    def ran_out(self) -> float | None:
        """When its living holder, before the release, had to stop trusting it. None if that did not happen."""
        spans = list(self._spans())
        last = spans[-1][1]
        limit = min(self.died, *(release.started for release in self.releases), INFINITY)
        was_refused = any(extend.outcome == "lost" for extend in self.extends)
        return last if NEVER < last < limit and not was_refused else None

    def trust_limits(self) -> Iterator[tuple[Operation, float, float]]:
        """Yield operations of its holder, with ``trusted_until`` at that moment, and the limit of ``trusted_until``.

        The limit is the duration of the last reply, counted from that reply, less the margin. An extension without a
        reply does not raise the limit. If it was shorter it lowers the limit, as the store may have carried it out.
        """
        given = self._given(self.acquire)
        yield self.acquire, self.acquire.trusted_until, given
        answers = [given]
        # Heartbeats may overtake each other. If a stopped process sees several replies at once, their order is unknown.
        for extend in sorted(self.extends, key=lambda extend: (extend.end, extend.outcome != "done")):
            if extend.ended is None:
                continue
            if extend.outcome == "lost":
                yield extend, extend.trusted_until, NEVER
                continue
            is_alone = all(o is extend or o.started > extend.end or o.end < extend.started for o in self.extends)
            if extend.outcome == "done":
                answers.append(self._given(extend))
                # It is unknown which of them the store did last, and which of those that ended at once was seen first.
                at_once = [self._given(o) for o in self.extends if o.outcome == "done" and o.end == extend.end]
                given = answers[-1] if is_alone else max(*answers, *at_once)
            elif is_alone:
                given = min(extend.trusted_before, self._given(extend))
            else:
                given = max(extend.trusted_before, *answers)
            yield extend, extend.trusted_until, given
        for look in self.checks:
            if self.acquire.keep_alive:  # heartbeats go on meanwhile
                yield look, look.trusted_until, max(answers)
            else:
                # An extension that took no time sent nothing: its holder knew that the lease had ended.
                known = [o for o in (self.acquire, *self.extends) if o.started < o.end <= look.started]
                last = max(o.end for o in known)
                seen = [o.trusted_until for o in known if o.end == last]
                if last == look.started:  # a stopped process may look before it sees the replies
                    seen += [o.trusted_before for o in known if o.end == last]
                yield look, look.trusted_until, max(seen)

    def _given(self, operation: Operation) -> float:
        seconds = max(operation.at_most, self._rest(operation)) if operation.kind == "extend" else operation.at_most
        return trust_ends(operation.granted_by, timedelta(seconds=seconds))

    def extended_in_vain(self, slack: float, kept: float = 0.0) -> Iterator[Operation]:
        """Yield extensions that were done after the end of the lease, where the moments at the store are known."""
        if not self.acquire.at_store:
            return
        until = self.acquire.granted_by + longer_by(kept, self.acquire.at_most, self.acquire)
        requests = [
            (moment, moment + longer_by(kept, max(extend.at_most, self._rest(extend)), extend), extend)
            for extend in self.extends
            for moment in extend.at_store or ()
        ]
        for moment, more, extend in sorted(requests, key=lambda request: request[0]):
            # A store that cannot compare times in a condition carries out any request that was sent in time.
            if (extend.started if kept else moment) <= until + slack:
                until = max(until, more)
            elif extend.outcome == "done" and moment == extend.granted_from:
                yield extend

    # Possible effects at the store

    def held_until(self, arrivals: Arrivals, prompt: float = INFINITY, kept: float = 0.0) -> float:
        """The latest moment until which the store can have kept others out.

        ``prompt``: a release that took longer may not have reached some of a quorum's servers. ``kept``: how much
        longer than requested the store may keep a lease.
        """
        if all(operation.at_store is not None for operation in (self.acquire, *self.extends, *self.releases)):
            return self._held_until_by_copies(kept)
        granted = self.acquire.granted_by if self.acquire.at_store else arrivals.of_answered(self.acquire)
        until = granted + longer_by(kept, self.acquire.at_most, self.acquire)
        sent_before: list[tuple[float, float]] = []
        has_ended = INFINITY
        for operation in sorted((*self.extends, *self.releases), key=lambda operation: operation.started):
            rest = self._rest(operation)
            seconds = rest if operation.kind == "release" else max(operation.at_most, rest)
            seconds = longer_by(kept, seconds, operation)
            is_left_alone = operation.kind == "release" and operation.end - operation.started >= prompt
            if operation.outcome == "done" and not is_left_alone:
                # The last reply decides, except over requests that were sent before it and may arrive later.
                arrives = arrivals.of_answered(operation)
                until = arrives + seconds
                for end, more in sorted(sent_before):
                    if end > operation.started:
                        until = max(until, min(end, until) + more)
            else:
                # The store refuses requests that arrive after the end of the lease.
                arrives = arrivals.of_failed(operation, self.dead)
                extended = max(until, min(arrives, until) + seconds)
                ended = min(operation.end, self.dead)
                if ended > until:  # a second copy, sent before, extends the lease of the first copy
                    extended = max(extended, min(ended, extended) + seconds)
                until = extended
            if operation.outcome == "lost":
                # A reply "lost" says that the lease has ended. A minority of servers may not know it yet.
                has_ended = min(has_ended, arrives)
            sent_before.append((arrives, seconds))
        return min(until, has_ended)

    def _held_until_by_copies(self, kept: float) -> float:
        """The same, where the moment at which each copy of a request reached the store is known.

        With ``kept``, all copies were carried out: the condition of a request compares versions, not times. So a late
        extension locks an expired lock again if nobody has acquired it meanwhile.
        """
        until, newest = self.acquire.granted_by + longer_by(kept, self.acquire.at_most, self.acquire), NEVER
        copies = [
            (moment, operation) for operation in (*self.extends, *self.releases) for moment in operation.at_store or ()
        ]
        for moment, operation in sorted(copies, key=lambda copy: copy[0]):
            if moment > until + ROUNDING and not kept:
                break  # it is refused, and so are all later copies
            rest = self._rest(operation)
            if kept and operation.started - self.known_at < self.acquire.at_least * (1 + SLOW):
                rest = max(rest, ROUNDING)  # by a slow clock, some of the minimum hold is left
            seconds = rest if operation.kind == "release" else max(operation.at_most, rest)
            ends = moment + longer_by(kept, seconds, operation)
            # A store that recognises retries may ignore a copy that is not the first, or that other requests have
            # overtaken.
            until = ends if operation.started > newest else max(until, ends)
            newest = max(newest, operation.started)
        return until

    def _rest(self, operation: Operation) -> float:
        """How much of the minimum hold was left at this request. Neither an extend nor a release shortens it."""
        return max(0.0, self.acquire.at_least - (operation.started - self.known_at))


def longer_by(kept: float, seconds: float, operation: Operation) -> float:
    """How long a lease may last if ``operation`` set it to end after ``seconds``. With 0, the lease is over.

    A store that has to guess its time may add the round trip of the operation, too.
    """
    if not kept or not seconds:
        return seconds
    return seconds + kept + (0.0 if operation.ended is None else operation.end - operation.started)


def leases_of(history: History) -> list[LeaseHistory]:
    leases = {o.claim: LeaseHistory(o) for o in history.of("acquire", outcome="granted")}
    for operation in history.operations:
        lease = leases.get(operation.claim)
        if lease is None:
            continue
        match operation.kind:
            case "extend":
                lease.extends.append(operation)
            case "release":
                lease.releases.append(operation)
            case "check":
                lease.checks.append(operation)
    deaths = {mark.worker: mark for mark in history.marks if mark.kind == "killed"}
    for lease in leases.values():
        if lease.worker in deaths:
            lease.died, lease.dead = deaths[lease.worker].before, deaths[lease.worker].after
    return list(leases.values())
