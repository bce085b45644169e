"""The leases of a history: what their holders believed, and how long the store can have kept others out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from shedlock_py.rules import trust_ends
from tests.faults.history import NEVER, History, Operation

INFINITY = float("inf")


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

    def held_until(self, late: float) -> float:
        """Until when the store can have kept others out. ``late``: how long a failed request may still be under way."""
        until = self.known_at + self.acquire.at_most
        for beat in self.extends:
            # Also one that came out as lost: asked twice, the first may have been done, and its reply lost.
            answered = beat.end if beat.outcome == "done" else min(beat.end, self.dead) + late
            until = max(until, answered + max(beat.at_most, self._rest(beat)))
        for release in self.releases:
            until = release.end if release.outcome == "done" else until
            until += self._rest(release)
        # Whoever is told that it is lost is told that it has ended.
        ended = [operation.end + late for operation in (*self.extends, *self.releases) if operation.outcome == "lost"]
        return min([until, *ended])

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
