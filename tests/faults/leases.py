"""The leases of a history: what their holders believed, and how long the store can have kept others out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from shedlock_py.request import trust_ends
from tests.faults.history import DISTURBED, EVERY_WORKER, NEVER, History, Mark, Operation

INFINITY = float("inf")


class Arrivals:
    """Until when the store may still do what it was asked.

    ``late``: how long after its sender gave up, or died, a request may be under way. A disturbance ends by condition,
    when nothing that was held back is under way any more; ``grace`` is for a driver that gives up first and closes its
    connection a moment later.
    """

    def __init__(self, history: History, *, late: float = 0.0, grace: float = 0.0) -> None:
        self._late, self._grace = late, grace
        self._disturbances = [mark for mark in history.marks if mark.kind == DISTURBED]

    def of_failed(self, asked: Operation, dead: float = INFINITY) -> float:
        """``dead``: since when its process is gone."""
        end = min(asked.end, dead)
        disturbances = self._met_by(asked, end)
        if any(end <= mark.after for mark in disturbances):
            return self._over(disturbances)
        return end + self._late

    def of_answered(self, asked: Operation) -> float:
        """Where connections break, a driver asks twice, and the first may arrive last."""
        return max(asked.end, self._over(self._met_by(asked, asked.end)))

    def _met_by(self, asked: Operation, end: float) -> list[Mark]:
        return [
            mark
            for mark in self._disturbances
            if mark.worker in (asked.worker, EVERY_WORKER) and asked.started <= mark.after and end >= mark.before
        ]

    def _over(self, disturbances: list[Mark]) -> float:
        return max((mark.after + self._grace for mark in disturbances), default=NEVER)


@dataclass
class LeaseHistory:
    """One acquisition that was granted, and all that its holder did with it."""

    acquire: Operation
    extends: list[Operation] = field(default_factory=list)
    releases: list[Operation] = field(default_factory=list)
    checks: list[Operation] = field(default_factory=list)
    died: float = INFINITY
    """Until when its process certainly lived."""
    dead: float = INFINITY
    """Since when its process was certainly gone."""

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
        """When its holder knew that it was granted: the store had granted it before."""
        return self.acquire.end

    # What its holder believed

    def trusted(self) -> list[tuple[float, float]]:
        """When its holder believed it, for certain: the believing may have begun earlier and ended later."""
        return [(begin, end) for begin, end in self._spans() if begin < end]

    def _spans(self) -> Iterator[tuple[float, float]]:
        limit = min(self.died, *(release.started for release in self.releases), INFINITY)
        # From one moment at which trusted_until was seen to the next, it was what was seen first, unless an extension
        # narrowed it; the least it can have been is what counts.
        begin, until = self.known_at, self.acquire.trusted_until
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
        sightings = [(beat.started, beat.believed, False) for beat in self.extends]
        sightings += [(beat.end, beat.trusted_until, True) for beat in self.extends if beat.ended is not None]
        return sorted(sightings)

    def _narrowed(self, begin: float, end: float) -> list[float]:
        """Until when it is believed while extensions are being asked for between these moments."""
        return [
            trust_ends(beat.started, timedelta(seconds=beat.at_most))
            for beat in self.extends
            if beat.started < end and beat.end > begin
        ]

    def ran_out(self) -> float | None:
        """When its holder, alive and not yet releasing it, had to stop believing it; None if that did not happen."""
        spans = list(self._spans())
        last = spans[-1][1]
        limit = min(self.died, *(release.started for release in self.releases), INFINITY)
        was_refused = any(beat.outcome == "lost" for beat in self.extends)
        return last if NEVER < last < limit and not was_refused else None

    def beliefs(self) -> Iterator[tuple[Operation, float, float]]:
        """What its holder did believing it until the second, though it can only be believed until the third.

        That is for as long as the last answer has given, counted from that answer, less the margin. An extension that
        was not answered gives nothing; a shorter one takes, as the store may have done it.
        """
        given = self._given(self.acquire)
        yield self.acquire, self.acquire.trusted_until, given
        answers = [given]
        for beat in self.extends:
            if beat.ended is None:
                continue
            is_alone = all(o is beat or o.started > beat.end or o.end < beat.started for o in self.extends)
            if beat.outcome == "done":
                answers.append(self._given(beat))
                given = answers[-1] if is_alone else max(answers)  # nobody knows which of them the store did last
            elif is_alone:
                given = min(beat.believed, self._given(beat))
            else:
                given = max(beat.believed, *answers)
            yield beat, beat.trusted_until, given
        for look in self.checks:
            if self.acquire.keep_alive:  # its heart beats meanwhile
                yield look, look.trusted_until, max(answers)
            else:
                seen = [o.trusted_until for o in (self.acquire, *self.extends) if o.end <= look.started]
                yield look, look.trusted_until, seen[-1]

    def _given(self, asked: Operation) -> float:
        seconds = max(asked.at_most, self._rest(asked)) if asked.kind == "extend" else asked.at_most
        return trust_ends(asked.end, timedelta(seconds=seconds))

    # What the store can have done

    def held_until(self, arrivals: Arrivals, prompt: float = INFINITY) -> float:
        """Until when the store can have kept others out.

        ``prompt``: a release that took longer may have left some of a quorum's servers alone.
        """
        until = arrivals.of_answered(self.acquire) + self.acquire.at_most
        asked_before: list[tuple[float, float]] = []
        has_ended = INFINITY
        for asked in sorted((*self.extends, *self.releases), key=lambda operation: operation.started):
            rest = self._rest(asked)
            seconds = rest if asked.kind == "release" else max(asked.at_most, rest)
            is_left_alone = asked.kind == "release" and asked.end - asked.started >= prompt
            if asked.outcome == "done" and not is_left_alone:
                # The last answer decides, but for what was asked before and may arrive later.
                arrives = arrivals.of_answered(asked)
                until = arrives + seconds
                for end, more in sorted(asked_before):
                    if end > asked.started:
                        until = max(until, min(end, until) + more)
            else:
                # What arrives after the lease has ended is refused.
                arrives = arrivals.of_failed(asked, self.dead)
                until = max(until, min(arrives, until) + seconds)
            if asked.outcome == "lost":
                # Whoever is told that it is lost is told that it has ended; a minority may not know it yet.
                has_ended = min(has_ended, arrives)
            asked_before.append((arrives, seconds))
        return min(until, has_ended)

    def _rest(self, asked: Operation) -> float:
        """What was left of the minimum hold when this was asked; neither an extend nor a release cuts it."""
        return max(0.0, self.acquire.at_least - (asked.started - self.known_at))


def leases_of(history: History) -> list[LeaseHistory]:
    """Every lease that its holder got to know of, in the order in which they were asked for."""
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
