"""Was any promise broken? A pure function from a history to findings.

Operations take time: the store acted at some moment between the begin and the end of an operation. The rules claim no
more than that. A store that keeps its promises never has a finding, however the processes are scheduled. The rules,
with the promises of docs/design.md:

overlap (I1, I6)
    A lease is *trusted* from the end of its acquire until the ``trusted_until`` that its holder knew, the begin of its
    release, or the death of its process. Two leases of the same name are never trusted at the same moment.
token (I7)
    An acquire that began after another acquire of the name had ended has the greater token. Concurrent acquires only
    have different tokens.
stale write (I7)
    A fenced write is refused if it began after a write with a greater token was accepted.
refused write (I1, I7)
    A write is accepted if the lease is still trusted when the write has ended: nobody else can have written.
minimum hold (I4)
    A later acquire does not end before the earlier acquire began plus its ``lock_at_least_for``. Later means that it
    began after the earlier acquire had ended, or has the greater token.
crash bound, grant lost (I3, I12)
    An attempt is not skipped if, from its begin to its end, no other claim can have held the name: after a release, or
    after ``lock_at_most_for`` from the last reply, or from the death of a holder that was waiting for a reply. A claim
    that was itself skipped may have held the name if it took longer than its lease: it was sent twice, and the first
    copy was granted. At a quorum, a slow claim may have held it, too; see :attr:`Rules.prompt`.
trust (I6)
    A lease that says it is trusted is trusted by the clock, however long its process was stopped.
trust window (I6)
    A lease is trusted no longer than the store's last reply can have granted, less the margin.
own writes (I2)
    An extension that reached the store after the end of the lease is refused. This is checked where the moment of
    arrival is known: in a simulation.
keep-alive
    Heartbeats go on after an error. While its process runs, a kept-alive lease does not run out of its trust window
    without an attempt to extend it in the second half of that window.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from tests.faults.history import History, Operation
from tests.faults.holds import holds_of, longer
from tests.faults.leases import LeaseHistory, leases_of

INFINITY = float("inf")
CHECKS = 10
"""If a process has checked its lease this often, it was running until the last of the checks."""
ROUNDING = 1e-5
"""Durations are kept to the microsecond."""
TROUBLES = ("killed", "stopped", "cut")
"""Marks after which another worker must take over."""


@dataclass(frozen=True)
class Rules:
    """Rules of a scenario. Durations are seconds."""

    off: frozenset[str] = frozenset()
    """Names of rules that do not apply here."""
    resolution: float = 0.005
    """Stores round their clocks and our durations to the millisecond, and their clocks may be slewed."""
    late: float = 0.0
    """How long after an operation failed, or its process died, its request may still reach the store."""
    grace: float = 0.0
    """The same after a disturbance. A disturbance ends when no request is under way any more."""
    vote: float = 0.0
    """How long the servers of a quorum wait for a claim that they voted for, whether it was granted or not."""
    drift: float = 0.0
    """Part by which a holder's clock and the store's clock may be faster or slower than the clock of the history."""
    kept: float = 0.0
    """How much longer than requested the store may keep a lease, apart from a round trip: some stores do not know their
    own time exactly."""
    prompt: float = INFINITY
    """A quorum: a claim that took less time has heard every server that is there.

    If a majority voted for such a claim, it knew this and was granted. So a prompt claim that was skipped kept nobody
    out.
    """


@dataclass(frozen=True)
class Finding:
    rule: str
    name: str
    text: str
    at: float


@dataclass
class Report:
    trials: int = 0
    findings: list[Finding] = field(default_factory=list)
    worst_overlap: float = 0.0
    """Seconds in which two leases of the same name were trusted."""
    overlapped: int = 0
    """Trials with such an overlap."""
    excused_overlap: float = 0.0
    """Seconds of overlap that the scenario itself has caused."""
    takeovers: list[float] = field(default_factory=list)
    """Seconds from a holder's trouble until another worker has the lease."""
    counts: Counter[str] = field(default_factory=Counter)
    """The number of operations and marks by kind and outcome, such as ``"acquire granted"``, ``"killed"``."""

    notes: list[str] = field(default_factory=list)
    """Measurements in words, for docs/results/faults.md."""
    errors: list[str] = field(default_factory=list)
    """Why the scenario failed to run."""

    def add(self, other: Report) -> None:
        self.trials += other.trials
        self.findings += other.findings
        self.worst_overlap = max(self.worst_overlap, other.worst_overlap)
        self.overlapped += other.overlapped
        self.excused_overlap = max(self.excused_overlap, other.excused_overlap)
        self.takeovers += other.takeovers
        self.counts += other.counts
        self.notes += other.notes
        self.errors += other.errors

    def note_overlaps(self, why: str, trials: str) -> None:
        self.notes.append(
            f"{why}. Two leases were trusted at once in {self.overlapped} of {self.trials} {trials}, "
            f"for up to {self.worst_overlap * 1000:.0f} ms. Tokens still grew: "
            f"{self.counts['write refused']} stale writes were refused"
        )


def check(history: History, rules: Rules | None = None) -> Report:
    rules = rules or Rules()
    report = Report(trials=1, counts=counts_of(history))
    by_name: dict[str, list[LeaseHistory]] = defaultdict(list)
    for lease in leases_of(history):
        by_name[lease.name].append(lease)
    operations_of: dict[str, list[Operation]] = defaultdict(list)
    for operation in history.operations:
        operations_of[operation.name].append(operation)
    for name, leases in by_name.items():
        overlaps = list(_overlaps(leases))
        report.worst_overlap = max([report.worst_overlap, *(length for length, _ in overlaps)])
        operations = operations_of[name]
        found = [
            *(finding for _, finding in overlaps),
            *_tokens(leases),
            *_writes([operation for operation in operations if operation.kind == "write"]),
            *_minimum_holds(leases, rules),
            *_trust(operations),
            *(
                finding
                for lease in leases
                for finding in (*_trust_windows(lease, rules), *_keep_alives(lease), *_late_extends(lease, rules))
            ),
        ]
        report.findings += [finding for finding in found if finding.rule not in rules.off]
        report.takeovers += _takeovers(leases, history)
    report.overlapped = int(report.worst_overlap > 0)
    for name, operations in operations_of.items():
        attempts = [operation for operation in operations if operation.kind == "acquire"]
        found = list(_lost_grants(attempts, by_name[name], history, rules))
        report.findings += [finding for finding in found if finding.rule not in rules.off]
    return report


def counts_of(history: History) -> Counter[str]:
    counts = Counter(f"{operation.kind} {operation.outcome or 'unended'}" for operation in history.operations)
    return counts + Counter(mark.kind for mark in history.marks)


# Mutual exclusion


def _overlaps(leases: list[LeaseHistory]) -> Iterator[tuple[float, Finding]]:
    spans = sorted((begin, end, number) for number, lease in enumerate(leases) for begin, end in lease.trusted())
    open_spans: list[tuple[float, int]] = []
    for begin, end, number in spans:
        open_spans = [(until, other) for until, other in open_spans if until > begin]
        for until, other in open_spans:
            if other != number:
                length = min(until, end) - begin
                text = f"{leases[other]} and {leases[number]} were both trusted for {length * 1000:.3f} ms"
                yield length, Finding("overlap", leases[number].name, text, begin)
        open_spans.append((end, number))


# Fencing


def _tokens(leases: list[LeaseHistory]) -> Iterator[Finding]:
    fenced = [lease for lease in leases if lease.token is not None]
    by_token: dict[int, LeaseHistory] = {}
    for lease in fenced:
        other = by_token.setdefault(lease.token or 0, lease)
        if other is not lease:
            yield Finding("token", lease.name, f"{other} and {lease} have the same token", lease.known_at)
    ended = sorted(fenced, key=lambda lease: lease.known_at)
    ends = [lease.known_at for lease in ended]
    greatest = list(accumulate(ended, _greater))
    for lease in fenced:
        before = bisect_left(ends, lease.acquire.started)
        if before and (greatest[before - 1].token or 0) > (lease.token or 0):
            text = f"{lease} came after {greatest[before - 1]} and has a smaller token"
            yield Finding("token", lease.name, text, lease.known_at)


def _greater(one: LeaseHistory, other: LeaseHistory) -> LeaseHistory:
    return one if (one.token or 0) >= (other.token or 0) else other


def _writes(writes: list[Operation]) -> Iterator[Finding]:
    accepted = sorted((write for write in writes if write.outcome == "done"), key=lambda write: write.end)
    ends = [write.end for write in accepted]
    greatest = list(accumulate((write.token or 0 for write in accepted), max))
    for write in accepted:
        before = bisect_left(ends, write.started)
        if before and greatest[before - 1] > (write.token or 0):
            text = f"{write.worker} wrote with token {write.token}, and {greatest[before - 1]} had been seen"
            yield Finding("stale write", write.name, text, write.started)
    for write in writes:
        if write.outcome == "refused" and write.end < write.trusted_until:
            text = f"{write.worker} with token {write.token} was refused, but its lease was trusted"
            yield Finding("refused write", write.name, text, write.started)


# Hold times


def _minimum_holds(leases: list[LeaseHistory], rules: Rules) -> Iterator[Finding]:
    known = sorted(leases, key=lambda lease: lease.acquire.granted_by)
    ends = [lease.acquire.granted_by for lease in known]
    for lease in leases:
        until = lease.acquire.granted_from + lease.acquire.at_least * (1 - rules.drift) - rules.resolution
        if rules.kept:  # the request says when the lease ends, whenever it arrives
            until = min(until, lease.acquire.started + lease.acquire.at_most * (1 - rules.drift))
        for later in known[bisect_right(ends, lease.acquire.started) : bisect_left(ends, until)]:
            if later.acquire.started > lease.known_at or (later.token or 0) > (lease.token or 0):
                early = (until - later.acquire.granted_by) * 1000
                text = f"{later} was granted {early:.3f} ms before the minimum hold of {lease} was over"
                yield Finding("minimum hold", lease.name, text, later.known_at)


def _lost_grants(
    attempts: list[Operation], leases: list[LeaseHistory], history: History, rules: Rules
) -> Iterator[Finding]:
    if all(attempt.outcome != "skipped" for attempt in attempts):
        return
    holds = sorted(holds_of(attempts, leases, history, rules))
    begins = [begin for begin, _, _ in holds]
    longest = list(accumulate(holds, longer))
    for attempt in attempts:
        if attempt.outcome != "skipped":
            continue
        before = bisect_right(begins, attempt.decided)
        until, died = longest[before - 1][1:] if before else (-INFINITY, False)
        if until + rules.resolution < attempt.started:
            rule = "crash bound" if died else "grant lost"
            since = f"{(attempt.started - until) * 1000:.0f} ms before" if before else "from the start"
            text = f"{attempt.worker} was skipped, but the name was free {since}"
            yield Finding(rule, attempt.name, text, attempt.started)


# The holder's own knowledge


def _trust(operations: Iterable[Operation]) -> Iterator[Finding]:
    for check in operations:
        if check.kind != "check" or check.outcome != "trusted":
            continue
        until = max(check.trusted_before, check.trusted_until)
        if check.started >= until:
            text = f"{check.worker} trusted its lease {(check.started - until) * 1000:.3f} ms after it had ended"
            yield Finding("trust", check.name, text, check.started)


def _trust_windows(lease: LeaseHistory, rules: Rules) -> Iterator[Finding]:
    allowance = ROUNDING + rules.drift * max([lease.acquire.at_most, *(extend.at_most for extend in lease.extends)])
    for operation, trusted, given in lease.trust_limits():
        if trusted > given + allowance:
            text = f"{lease} was trusted {(trusted - given) * 1000:.3f} ms longer than the store can have given it"
            yield Finding("trust window", lease.name, text, operation.end)


def _late_extends(lease: LeaseHistory, rules: Rules) -> Iterator[Finding]:
    for extend in lease.extended_in_vain(rules.resolution + 2 * rules.drift * lease.acquire.at_most, rules.kept):
        yield Finding("own writes", lease.name, f"{lease} was extended after it had ended", extend.started)


def _keep_alives(lease: LeaseHistory) -> Iterator[Finding]:
    ran_out = lease.ran_out()
    if not lease.acquire.keep_alive or ran_out is None or any(extend.ended is None for extend in lease.extends):
        return
    last = max([lease.known_at, *(extend.started for extend in lease.extends)])
    checks = [check.started for check in lease.checks if last < check.started < ran_out]
    window = max([lease.acquire.at_most, *(extend.at_most for extend in lease.extends)])
    if len(checks) >= CHECKS and max(checks) - last > window / 2:
        text = f"{lease} ran out, without an attempt to extend it for {(ran_out - last) * 1000:.0f} ms"
        yield Finding("keep-alive", lease.name, text, ran_out)


# Figures


def _takeovers(leases: list[LeaseHistory], history: History) -> Iterator[float]:
    for mark in history.marks:
        if mark.kind not in TROUBLES:
            continue
        for lease in leases:
            if lease.worker == mark.worker and any(begin <= mark.before <= end for begin, end in lease.trusted()):
                later = [
                    other.known_at for other in leases if other.worker != mark.worker and other.known_at > mark.before
                ]
                if later:
                    yield min(later) - mark.before
