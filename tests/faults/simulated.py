"""Histories of a lock that is only simulated: a correct one, or one with a fault, under any schedule.

Requests and replies take time, are lost, or arrive after whoever sent them has given up; workers stand still and die.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Generator
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

from shedlock_py.request import trust_ends
from tests.faults.history import NEVER, History, Mark, Operation

NAME = "job"
END = 4.0
LATE = 0.5
"""The latest that a request reaches the store after it was given up."""
TIMEOUT = 0.3
FAULTS = (
    "double grant",
    "token",
    "fence",
    "minimum hold",
    "holds too long",
    "extends too long",
    "trusts too long",
    "trusts no answer",
    "is not narrowed",
)

Steps = Generator[float, None, None]


class SimulatedStore:
    """Its clock counts milliseconds, as that of SQLite."""

    def __init__(self, random: Random, fault: str) -> None:
        self._random, self._fault = random, fault
        self._until, self._claim, self._token, self._greatest = 0.0, "", 0, 0

    def _is(self, fault: str) -> bool:
        return self._fault == fault and self._random.random() < 0.5

    def acquire(self, moment: float, claim: str, at_most: float) -> int:
        now = math.floor(moment * 1000) / 1000
        if self._claim == claim:
            return self._token if self._until > now else 0
        if self._until > now and not self._is("double grant"):
            return 0
        self._claim, self._token = claim, self._token + (-1 if self._is("token") else 1)
        self._until = now + at_most * (3 if self._is("holds too long") else 1)
        return self._token

    def hold(self, moment: float, claim: str, seconds: float, *, is_release: bool = False) -> bool:
        now = math.floor(moment * 1000) / 1000
        if self._claim != claim or self._until <= now:
            return False
        if is_release:
            seconds = 0.0 if self._is("minimum hold") else seconds
        elif self._is("extends too long"):
            seconds *= 3
        self._until = now + seconds
        return True

    def write(self, token: int) -> bool:
        if token < self._greatest and not self._is("fence"):
            return False
        self._greatest = max(self._greatest, token)
        return True


class _DiedError(Exception):
    """A worker is no more."""


class Simulation:
    def __init__(self, random: Random, fault: str = "", workers: int = 3) -> None:
        self.random, self.fault, self.now = random, fault, 0.0
        self._trouble = random.choice((0.2, 0.02))
        """How often a request or a reply is slow; a fifth as often, its worker dies while it waits."""
        self._store = SimulatedStore(random, fault)
        self._operations: list[Operation] = []
        self._marks: list[Mark] = []
        self._claims = itertools.count()
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Steps]] = []
        for number in range(workers):
            self._schedule(0.0, self._live(f"w{number}"))

    def run(self) -> History:
        while self._due:
            self.now, _, steps = heapq.heappop(self._due)
            moment = next(steps, None)
            if moment is not None:
                self._schedule(max(moment, self.now), steps)
        return History(tuple(sorted(self._operations, key=lambda operation: operation.started)), tuple(self._marks))

    def _schedule(self, moment: float, steps: Steps) -> None:
        heapq.heappush(self._due, (moment, next(self._numbers), steps))

    def _after(self, most: float) -> float:
        """Most often soon, now and then after a long stop."""
        share = self.random.random()
        return self.now + most * share * (20 if self.random.random() < 0.05 else 1)

    def _later(self, moment: float, action: Callable[[], object]) -> Steps:
        yield moment
        action()

    def _ask(self, operation: Operation, action: Callable[[], Any]) -> Generator[float, None, tuple[int, Any]]:
        """The operation's number, and the reply; None if there was none. Dies on the way, now and then."""
        number = len(self._operations)
        self._operations.append(operation)
        given_up = self.now + TIMEOUT
        arrives = self.now + self.random.random() * (TIMEOUT + LATE if self._is_slow() else 0.01)
        answered = arrives + self.random.random() * (TIMEOUT if self._is_slow() else 0.01)
        if self.random.random() < self._trouble / 5:
            self._schedule(min(arrives, self.now + LATE), self._later(min(arrives, self.now + LATE), action))
            raise _DiedError
        if arrives >= given_up:
            self._schedule(arrives, self._later(arrives, action))
            yield given_up
            return number, None
        yield arrives
        reply = action()
        yield min(answered, given_up)
        return number, None if answered >= given_up else reply

    def _is_slow(self) -> bool:
        return self.random.random() < self._trouble

    def _die(self, worker: str) -> None:
        self._marks.append(Mark("killed", worker, self.now, self.now))
        if self.now < END:
            self._schedule(self.now, self._live(f"{worker}+"))

    def _end(self, number: int, outcome: str, **known: Any) -> None:
        self._operations[number] = replace(self._operations[number], ended=self.now, outcome=outcome, **known)

    def _live(self, name: str) -> Steps:
        try:
            yield from self._worker(name)
        except _DiedError:
            self._die(name)

    def _worker(self, name: str) -> Steps:
        random = self.random
        while self.now < END:
            yield self._after(0.1)
            at_most, at_least = random.choice((0.3, 0.5)), random.choice((0.0, 0.1, 0.25))
            claim, asked_at = f"c{next(self._claims)}", self.now
            request = Operation(name, "acquire", NAME, self.now, at_most=at_most, at_least=at_least)

            def acquire(claim: str = claim, at_most: float = at_most) -> int:
                return self._store.acquire(self.now, claim, at_most)

            number, token = yield from self._ask(request, acquire)
            if not token:
                self._end(number, "error" if token is None else "skipped")
                continue
            extra = 0.2 if self.fault == "trusts too long" else 0.0
            until = trust_ends(asked_at, timedelta(seconds=at_most)) + extra
            granted_at = self.now
            self._end(number, "granted", claim=claim, token=token, trusted_until=until)
            yield from self._work(name, claim, token, until)
            if random.random() < 0.4:
                seconds = max(random.choice((at_most, 0.1, 0.9)), granted_at + at_least - self.now)
                until = yield from self._extend(name, claim, token, until, seconds)
                yield from self._work(name, claim, token, until)
            if random.random() < 0.7:
                yield from self._release(name, claim, token, until, max(0.0, granted_at + at_least - self.now))

    def _work(self, name: str, claim: str, token: int, until: float) -> Steps:
        yield self._after(0.1)
        if self.random.random() < 0.05:
            raise _DiedError
        facts: dict[str, Any] = {"claim": claim, "token": token, "trusted_before": until, "trusted_until": until}
        self._operations.append(Operation(name, "check", NAME, self.now, **facts))
        self._end(len(self._operations) - 1, "trusted" if self.now < until else "untrusted")
        number = len(self._operations)
        self._operations.append(Operation(name, "write", NAME, self.now, **facts))
        yield self._after(0.01)
        accepted = self._store.write(token)
        yield self._after(0.01)
        self._end(number, "done" if accepted else "refused")

    def _extend(self, name: str, claim: str, token: int, until: float, seconds: float) -> Generator[float, None, float]:
        asked_at = self.now
        asked = Operation(
            name, "extend", NAME, self.now, claim=claim, token=token, at_most=seconds, trusted_before=until
        )
        number, reply = yield from self._ask(asked, lambda: self._store.hold(self.now, claim, seconds))
        extended = trust_ends(asked_at, timedelta(seconds=seconds))
        narrowed = until if self.fault == "is not narrowed" else min(until, extended)
        if self.fault == "is not narrowed":
            extended = max(until, extended)
        if self.fault == "trusts no answer":
            narrowed = extended
        until = {True: extended, False: NEVER, None: narrowed}[reply]
        self._end(number, {True: "done", False: "lost", None: "error"}[reply], trusted_until=until)
        return until

    def _release(self, name: str, claim: str, token: int, until: float, rest: float) -> Steps:
        asked = Operation(name, "release", NAME, self.now, claim=claim, token=token, trusted_before=until)
        number, reply = yield from self._ask(asked, lambda: self._store.hold(self.now, claim, rest, is_release=True))
        self._end(number, {True: "done", False: "lost", None: "error"}[reply])
