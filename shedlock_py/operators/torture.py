"""Judge the replies of many racers on one store: for ``shedlock doctor --torture``. It does no I/O and reads no clock.

All racers run on one machine, so their monotonic clocks are one clock. Each reply has the moments when its request was
sent and when its reply was received: the store did its part in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from shedlock_py.operators.display import counted, in_words
from shedlock_py.provider import Check

MEANINGS = {
    "two holders": "two replicas would run one job at the same time",
    "lost lease": "the store lost a lease that its holder trusts, so a second replica may run the job beside it",
    "late copy": "a request that a driver or a proxy sends again, or late, changes the lock of the next holder",
    "fire times": "a job would run twice for one fire time",
    "fencing tokens": "what a token protects would accept a former holder, or refuse the present holder",
    "early expiry": "a second replica would run the job while the first one trusts its lease",
    "late expiry": "after a crash, no other replica would run the job in time",
    "refused": "a job would be skipped on all replicas",
    "old record": "a read does not see the last grant: reads may go to a replica. Elections and operators need it",
    "clock": "leases end early where the store's clock is ahead, and locks are given away that a holder trusts",
    "stopped holder": "a process that stood still would go on with a lease that it has lost",
}
"""The faults, and their consequences for a user."""
SHOWN = 2
"""The number of examples of each fault."""
GRACE = 5.0
"""Seconds after ``lock_at_most_for`` when a lock must be free at the latest; with a coarse clock, more."""
CLOCK_SECONDS = 0.1
"""The most that an exact clock may jump: the part of a lease of 10 s that its holder does not trust."""
RECENT = 30.0
"""Seconds between two reads of the clock that are compared. In a longer time, clocks drift apart."""
LEAST = {"rounds": 10, "fire times": 10, "expired leases": 2, "stopped holders": 1, "clock readings": 6}


@dataclass(frozen=True)
class Reply:
    """A reply of one racer. Times are monotonic seconds."""

    racer: str
    sent: float
    received: float
    error: str = ""
    is_done: bool = False
    """acquire: granted; extend, release: done; woken: the lease is trusted or was extended or released."""
    until: float = 0.0
    """The end of the trust in the lease. For an extend and a release: before the request."""
    token: int | None = None
    locked_by: str = ""
    """Holder and claim id: of the lease, or of the record that was read."""
    read_at: float = 0.0
    """The store's clock, in seconds since 1970."""
    details: str = ""

    def __str__(self) -> str:
        return f"{self.locked_by}, token {self.token}"


@dataclass
class Judge:
    """Counts the replies, and collects the faults in them.

    :ivar clock_error: in seconds, if the provider knows the store's time only roughly; else 0.
    """

    racers: int
    clock_error: float = 0.0
    needed: dict[str, int] = field(default_factory=lambda: dict(LEAST))
    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=dict)
    number: Counter[str] = field(default_factory=Counter)
    first_error: str = ""
    _tokens: dict[str, Reply] = field(default_factory=dict)
    _clocks: dict[str, Reply] = field(default_factory=dict)

    def fault(self, kind: str, evidence: str) -> None:
        self.number[kind] += 1
        examples = self.faults.setdefault(kind, [])
        if len(examples) < SHOWN:
            examples.append(evidence)

    def good(self, replies: Iterable[Reply]) -> list[Reply]:
        """Return the replies without an error, and count the errors."""
        found = []
        for reply in replies:
            if reply.error:
                self.counts["errors"] += 1
                self.first_error = self.first_error or reply.error
            else:
                found.append(reply)
        return found

    def granted(self, name: str, reply: Reply) -> None:
        """Count a grant. Its token must be greater than all tokens of that name before."""
        self.counts["grants"] += 1
        before = self._tokens.get(name)
        if reply.token is None:
            return
        if before is not None and before.token is not None and reply.token <= before.token:
            self.fault("fencing tokens", f"{name}: {reply}, was granted after {before}")
        else:
            self._tokens[name] = reply

    def round(self, name: str, replies: Sequence[Reply]) -> Reply | None:
        """Judge acquires of one name at the same time. Return the grant if exactly one racer was granted the lock."""
        good = self.good(replies)
        grants = sorted((reply for reply in good if reply.is_done), key=lambda reply: reply.token or 0)
        for grant in grants:
            self.granted(name, grant)
        if len(good) < len(replies):
            return None  # a racer without a reply may have the lock
        self.counts["rounds"] += 1
        self.counts["rounds without a grant"] += not grants
        if len(grants) > 1 and max(grant.received for grant in grants) < min(grant.until for grant in grants):
            who = " and to ".join(map(str, grants))
            self.fault("two holders", f"{name}: {len(replies)} acquired it at once, and it was granted to {who}")
        return grants[0] if len(grants) == 1 else None

    def kept(self, name: str, what: str, lease: Reply, reply: Reply) -> None:
        """Judge an extend or a release by the holder of ``lease``, of a lease that it trusts."""
        if self.good([reply]) and not reply.is_done and reply.received < reply.until:
            self.fault("lost lease", f"{name}: {what} by {lease}, was refused while the lease was trusted")

    def late_copy(self, name: str, old: Reply, holder: Reply, reply: Reply) -> None:
        """Judge an extend and a release of a lease that was released before."""
        if self.good([reply]):
            self.counts["late copies"] += 2
            if reply.is_done:
                self.fault("late copy", f"{name}: {reply.details} of {old}, was done while {holder}, held the lock")

    def read(self, name: str, lease: Reply, reply: Reply) -> None:
        """Judge a read after a grant."""
        if self.good([reply]) and reply.locked_by != lease.locked_by and reply.received < lease.until:
            self.fault("old record", f"{name}: {reply.racer} read {reply}, after it was granted to {lease}")

    def fire_time(self, name: str, fire_time: datetime, replies: Sequence[Reply], older: Reply) -> None:
        """Judge acquires of one fire time, and an acquire of an older fire time. Each grant was released at once."""
        good, when = self.good(replies), fire_time.isoformat()
        grants = sorted((reply for reply in good if reply.is_done), key=lambda reply: reply.token or 0)
        for grant in grants:
            self.granted(name, grant)
        if len(good) == len(replies):
            self.counts["fire times"] += 1
            self.counts["fire times without a grant"] += not grants
        if len(grants) > 1:
            self.fault("fire times", f"{name}: the fire time {when} was granted to {' and to '.join(map(str, grants))}")
        if self.good([older]) and older.is_done and grants:
            self.fault("fire times", f"{name}: a fire time before {when} was granted after it, to {older}")

    def attempt(self, name: str, seconds: float, former: Reply | None, reply: Reply) -> bool:
        """Judge an acquire after ``former``, which was granted for ``seconds`` and never released.

        :param former: None if it is not known.
        :returns: whether the lease of ``former`` lasts too long.
        """
        if reply.is_done:
            self.granted(name, reply)
        if former is None:
            return False
        if reply.is_done:
            self.counts["expired leases"] += 1
            if (early := former.until - reply.received) > 0:
                what = f"{reply}, was granted at least {_seconds(early)} before {former}, stops trusting its lease"
                self.fault("early expiry", f"{name}: {what}")
        elif reply.sent > former.received + self.longest(seconds):
            late = _seconds(reply.sent - former.received)
            self.fault("late expiry", f"{name}: still refused {late} after {former}, got it for {_seconds(seconds)}")
            return True
        return False

    def longest(self, seconds: float) -> float:
        """Return after how many seconds a lease must have ended."""
        return seconds + GRACE + 3 * self.clock_error

    def woken(self, name: str, former: Reply, holder: Reply, reply: Reply) -> None:
        """Judge a holder that was stopped beyond its lease, after ``holder`` has got the lock."""
        if self.good([reply]) and holder.received > former.until:  # else its lease has expired early
            self.counts["stopped holders"] += 1
            if reply.is_done:
                self.fault(
                    "stopped holder",
                    f"{name}: {former}, stood still until {holder}, had the lock; then {reply.details}",
                )

    def clock(self, first: Reply, other: Reply, again: Reply) -> None:
        """Judge three readings of the store's clock: of a racer, of another racer, and of the first one again."""
        if len(self.good([first, other, again])) < 3:
            return
        self.counts["clock readings"] += 3
        last = self._clocks.get(first.racer)
        pairs = [(first, again), *([(last, first)] if last and first.sent - last.received < RECENT else [])]
        self._clocks[first.racer] = again
        for before, after in pairs:
            if jump := self._jump(before, after):
                how = "jumped ahead" if jump > 0 else "went back"
                self.fault(
                    "clock", f"the store's time {how} by {_seconds(abs(jump))} between two reads of {first.racer}"
                )
                return
        if jump := self._jump(first, other) and self._jump(again, other):
            apart = _seconds(abs(jump))
            self.fault("clock", f"the store's time for {other.racer} is {apart} from that for {first.racer}")

    def _jump(self, before: Reply, after: Reply) -> float:
        """Return by how many seconds the store's clock surely jumped between two readings; 0 within its error."""
        allowed = self.clock_error + 1.0 if self.clock_error else CLOCK_SECONDS  # a coarse clock shows whole seconds
        ahead = (after.read_at - after.received) - (before.read_at - before.sent)
        back = (before.read_at - before.received) - (after.read_at - after.sent)
        return ahead if ahead > allowed else -back if back > allowed else 0.0

    # The verdict

    def progress(self) -> str:
        faults, counts = sum(self.number.values()), self.counts
        return f"{counts['grants']:,} grants, {counted(faults, 'fault')}, {counted(counts['errors'], 'error')}"

    def checks(self) -> list[Check]:
        """Return the faults, and the verdict as the last check."""
        for what in ("rounds", "fire times"):
            if (none := self.counts[f"{what} without a grant"]) > self.counts[what] / 2:
                self.fault("refused", f"nobody was granted the lock in {none:,} of {self.counts[what]:,} {what}")
                self.number["refused"] = none
        found = [
            Check(kind, "failed", f"{self.number[kind]:,} times: {'; '.join(self.faults[kind])}", meaning)
            for kind, meaning in MEANINGS.items()
            if kind in self.faults
        ]
        faults = counted(sum(self.number.values()), "fault") if found else "no fault"
        verdict, hint = f"{faults} found in {self.summary()}", None
        missing = [f"{what}: {number}" for what, number in self.needed.items() if self.counts[what] < number]
        if missing and not found:
            verdict = f"no verdict, too little was tried: {self.summary()}"
            hint = f"a verdict needs {', '.join(missing)}: give it more time with --for, or look at the errors"
        if self.first_error:
            verdict += f"; the first error: {self.first_error}"
        return [*found, Check("torture", "failed" if found or missing else "ok", verdict, hint)]

    def summary(self) -> str:
        parts = {what: self.counts[what] for what in (*self.needed, "late copies", "errors")}
        parts = {f"rounds of {self.racers}": parts.pop("rounds"), **parts}
        return f"{self.counts['grants']:,} grants ({', '.join(f'{what}: {n:,}' for what, n in parts.items())})"


def _seconds(seconds: float) -> str:
    return in_words(timedelta(seconds=seconds))
