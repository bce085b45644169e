"""Is a recorded history a behaviour of Lease.tla? TLC decides.

    python -m tests.formal.traces FILE...

Each file is a history written by ``python -m tests.faults --keep DIRECTORY``. Prints one line for each lock name.
Exits with 1 if TLC refuses a history.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shedlock_py.model.request import SLACK
from tests.faults.history import DISTURBED, History, Operation, Reader
from tests.formal.tlc import TlcFailed, check

KINDS = ("acquire", "extend", "release", "force_release", "check")
TOLERANCE = 2000
"""Microseconds by which a store may end a lease earlier or later than the holder's clock. Some stores count in ms."""
REACHED = re.compile(r'^<<"reached", (\d+)>>', re.MULTILINE)
CONFIG = f"""\
SPECIFICATION TraceSpec
CONSTANTS
  None = 0
  Claims <- TraceClaims
  NewToken <- TraceToken
  AtMost <- RecordedAtMost
  AtLeast <- RecordedAtLeast
  Lengths = {{}}
  Extensions = 1000000
  Slack = {round(SLACK * 1e6)}
  Drift = 0
  Operations = 1000000
CONSTRAINT Promises
INVARIANT Unfinished
"""


class NotModelled(Exception):
    """The history contains events that the specification does not describe."""


@dataclass(frozen=True)
class Event:
    """An operation that begins or ends, in microseconds since the history began. Operation 0: only a moment to try."""

    at: int
    operation: int
    begins: bool


class Trace:
    """The part of a history for one lock name, as the module Recorded of TraceLease.tla."""

    def __init__(self, history: History, name: str) -> None:
        self.operations = [each for each in history.operations if each.name == name and each.kind in KINDS]
        others = {o.kind for o in history.operations if o.kind not in KINDS and o.name in (name, "")} - {"write"}
        if others:
            raise NotModelled(f"the specification has no {' and no '.join(sorted(others))}")
        if any(mark.kind == DISTURBED for mark in history.marks):
            raise NotModelled("connections were disturbed, so a request may have been executed twice")
        self.at_most, self.at_least = self._durations()
        self._start = self.operations[0].started
        self._claims: dict[str, int] = {}
        """By claim id; by worker for acquires that were skipped, as they leave no claim id."""
        self._sends: dict[int, int] = {}
        self._rows = [self._row(operation) for operation in self.operations]
        observed = list(self._events())
        self.events = sorted([*observed, *self._moments(observed)], key=lambda event: (event.at, not event.begins))

    def module(self) -> str:
        """Return the module Recorded."""
        events = (f"[at |-> {e.at}, op |-> {e.operation}, begins |-> {str(e.begins).upper()}]" for e in self.events)
        ranks = {token: 1000 * (rank + 1) for rank, token in enumerate(sorted(set(self._tokens().values())))}
        tokens = {claim: ranks[token] for claim, token in self._tokens().items()}
        return "\n".join(
            [
                "---- MODULE Recorded ----",
                "EXTENDS Naturals",
                f"RecordedAtMost == {self.at_most}",
                f"RecordedAtLeast == {self.at_least}",
                f"Tolerance == {TOLERANCE}",
                f"Tokens == <<{', '.join(str(tokens.get(c, 0)) for c in range(1, len(self._claims) + 1))}>>",
                "Ops == <<" + ",\n  ".join(self._rows) + ">>",
                "Events == <<" + ",\n  ".join(events) + ">>",
                "====",
            ]
        )

    def microseconds(self, seconds: float) -> int:
        return max(0, round((seconds - self._start) * 1e6))

    def describe(self, number: int) -> str:
        """Describe the event of that number for people."""
        event = self.events[number - 1]
        if event.operation == 0:
            return f"{event.at / 1e6:.6f} s"
        operation = self.operations[event.operation - 1]
        what = "begins" if event.begins else f"ends: {operation.outcome}"
        return f"{event.at / 1e6:.6f} s: {operation.kind} of {operation.worker}, token {operation.token}, {what}"

    def _durations(self) -> tuple[int, int]:
        acquires = [each for each in self.operations if each.kind == "acquire"]
        durations = {(round(each.at_most * 1e6), round(each.at_least * 1e6)) for each in acquires}
        if len(durations) != 1:
            raise NotModelled("the acquires do not all have the same durations")
        return durations.pop()

    def _row(self, operation: Operation) -> str:
        claim = self._claim_of(operation)
        number = 0
        if operation.kind == "extend":
            number = self._sends[claim] = self._sends.get(claim, 0) + 1
        facts = f'kind |-> "{operation.kind}", claim |-> {claim}, number |-> {number}'
        outcome = operation.outcome or "none"
        return (
            f'[{facts}, outcome |-> "{outcome}", for |-> {round(operation.at_most * 1e6)}, '
            f"trusted |-> {self.microseconds(max(operation.trusted_until, self._start))}]"
        )

    def _claim_of(self, operation: Operation) -> int:
        if operation.kind == "force_release":
            return 0
        key = operation.claim
        if operation.kind == "acquire" and operation.outcome == "skipped":
            key = f"skipped {operation.worker}"
        return self._claims.setdefault(key or f"unknown {len(self._claims)}", len(self._claims) + 1)

    def _tokens(self) -> dict[int, int]:
        return {
            self._claims[each.claim]: each.token
            for each in self.operations
            if each.kind == "acquire" and each.outcome == "granted" and each.token is not None
        }

    def _events(self) -> Iterator[Event]:
        for number, operation in enumerate(self.operations, 1):
            if operation.kind == "check":
                if operation.outcome == "trusted":
                    yield Event(self.microseconds(operation.started), number, True)
                continue
            yield Event(self.microseconds(operation.started), number, True)
            if operation.ended is not None:
                yield Event(self.microseconds(operation.ended), number, False)

    def _moments(self, observed: list[Event]) -> Iterator[Event]:
        """Yield possible moments of grants and extensions, such that their leases end at an observed event."""
        moments: set[int] = set()
        for operation in self.operations:
            if operation.kind not in ("acquire", "extend") or operation.outcome in ("skipped", "lost"):
                continue
            begin, end = (
                self.microseconds(operation.started),
                self.microseconds(min(operation.end, operation.started + 5)),
            )
            for length in {round(operation.at_most * 1e6), self.at_least}:
                moments |= {event.at - length for event in observed if begin < event.at - length < end}
        yield from (Event(moment, 0, True) for moment in moments)


@dataclass(frozen=True)
class Verdict:
    """Whether TLC accepted a trace; if not, the last accepted event. ``line`` is for people."""

    accepted: bool
    line: str


def judge(trace: Trace, *, timeout: float = 600.0) -> Verdict:
    result = check("TraceLease", CONFIG, extra={"Recorded": trace.module()}, timeout=timeout)
    numbers = f"{len(trace.operations)} operations, {result.states:,} states"
    if result.violated == "Unfinished":
        return Verdict(True, f"a behaviour of Lease.tla ({numbers})")
    reached = max(int(number) for number in REACHED.findall(result.output))
    return Verdict(False, f"REFUSED at {trace.describe(reached)} ({numbers})")


def main(files: Sequence[str]) -> int:
    if not files:
        print(__doc__)
        return 2
    refused = 0
    for file in files:
        history = Reader(Path(file)).update().history()
        for name in sorted({each.name for each in history.of("acquire")}):
            try:
                verdict = judge(Trace(history, name))
            except NotModelled as why:
                print(f"{file} {name}: not modelled: {why}", flush=True)
                continue
            except TlcFailed as error:
                verdict = Verdict(False, str(error))
            refused += not verdict.accepted
            print(f"{file} {name}: {verdict.line}", flush=True)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
