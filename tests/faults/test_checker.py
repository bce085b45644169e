"""The checker finds each fault, and has no findings without a fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.faults.checker import Rules, check
from tests.faults.history import NEVER, History, Mark, Operation

A, B = "a", "b"


def acquire(worker: str, started: float, ended: float | None, **facts: Any) -> Operation:
    """An acquire, granted by default. Claim and token follow from the worker's name and the moment."""
    given = {"outcome": "granted", "claim": f"{worker}{started}", "token": int(started * 1000), "at_most": 1.0}
    given["trusted_until"] = started + 0.988
    return Operation(worker, "acquire", "job", started, ended, **{**given, **facts})


def skip(worker: str, started: float, ended: float) -> Operation:
    return Operation(worker, "acquire", "job", started, ended, "skipped", at_most=1.0)


def then(
    kind: str, lease: Operation, started: float, ended: float | None, outcome: str | None, **facts: Any
) -> Operation:
    given = {"claim": lease.claim, "token": lease.token, "trusted_before": lease.trusted_until}
    given["trusted_until"] = NEVER if kind == "release" or outcome == "lost" else lease.trusted_until
    return Operation(lease.worker, kind, lease.name, started, ended, outcome, **{**given, **facts})


def released(lease: Operation, started: float, ended: float) -> Operation:
    return then("release", lease, started, ended, "done")


def reached(operation: Operation, *moments: float, replied_at: float | None = None) -> Operation:
    """Copies of its requests reached the store at ``moments``. The reply belongs to the copy at ``replied_at``."""
    return replace(operation, at_store=moments, replied_at=replied_at)


def rules_found(*operations: Operation, marks: tuple[Mark, ...] = (), rules: Rules | None = None) -> list[str]:
    history = History(tuple(sorted(operations, key=lambda operation: operation.started)), marks)
    return [finding.rule for finding in check(history, rules).findings]


QUORUM = Rules(vote=3.0, prompt=0.05)
DISTURBANCE: dict[str, Any] = {"marks": (Mark("disturbed", A, 1.2, 5.0),), "rules": Rules(late=2.0, grace=0.5)}
FIRST = acquire(A, 1.0, 1.1)
KEPT = acquire(A, 1.0, 1.1, at_least=0.5)
KILLED = Mark("killed", A, 1.3, 1.31)
EXTENDED = then("extend", FIRST, 1.5, 1.6, "done", at_most=1.0, trusted_until=2.488)
SHORTER = then("extend", FIRST, 1.2, 1.3, "done", at_most=0.2, trusted_until=1.396)
FAILED = then("extend", FIRST, 1.9, 2.0, "error", at_most=1.0)
SECOND = acquire(B, 2.1, 2.2)
WRITE = then("write", SECOND, 2.3, 2.4, "done")
STALE = then("write", FIRST, 2.5, 2.6, "done")
GAVE_UP = acquire(A, 1.0, 1.1, outcome="error", claim="")
PENDING = acquire(A, 1.2, None, outcome=None, claim="")
RELEASED = released(FIRST, 1.2, 1.3)
NO_RULES: dict[str, Any] = {}
LATER: dict[str, Any] = {"rules": Rules(late=5.0)}

CASES: dict[str, tuple[tuple[Operation, ...], dict[str, Any], list[str]]] = {
    # By case: operations, marks and rules, and the expected findings.
    "two trusted leases": ((FIRST, released(FIRST, 1.8, 1.9), acquire(B, 1.4, 1.5)), NO_RULES, ["overlap"]),
    "released before": ((FIRST, released(FIRST, 1.4, 1.6), acquire(B, 1.45, 1.55)), NO_RULES, []),
    "not trusted any more": ((FIRST, acquire(B, 1.95, 2.0)), NO_RULES, []),
    "extended": ((FIRST, EXTENDED, acquire(B, 1.95, 2.05)), NO_RULES, ["overlap"]),
    "extension refused": (
        (FIRST, replace(EXTENDED, outcome="lost", trusted_until=NEVER), acquire(B, 1.95, 2.05)), NO_RULES, []
    ),
    "extension narrows at once": (
        (FIRST, then("extend", FIRST, 1.2, None, None, at_most=0.1), acquire(B, 1.35, 1.4)), NO_RULES, []
    ),
    "dead holder": ((FIRST, acquire(B, 1.35, 1.4)), {"marks": (KILLED,)}, []),
    "stopped holder": ((FIRST, acquire(B, 1.35, 1.4)), {"marks": (replace(KILLED, kind="stopped"),)}, ["overlap"]),
    "equal tokens": ((FIRST, acquire(B, 0.9, 1.2, token=1000, trusted_until=0.0)), NO_RULES, ["token"]),
    "concurrent tokens": ((FIRST, acquire(B, 0.9, 1.2, token=999, trusted_until=0.0)), NO_RULES, []),
    "greatest token of all": (
        (FIRST, RELEASED, acquire(B, 2.1, 2.2, token=3000), acquire(A, 3.2, 3.3, token=2000)), NO_RULES, ["token"]
    ),
    "stale write": ((FIRST, SECOND, WRITE, STALE), NO_RULES, ["stale write"]),
    "concurrent write": ((FIRST, SECOND, WRITE, replace(STALE, started=2.35)), NO_RULES, []),
    "refused write": ((FIRST, then("write", FIRST, 1.5, 1.6, "refused")), NO_RULES, ["refused write"]),
    "refused too late to tell": ((FIRST, then("write", FIRST, 1.5, 1.99, "refused")), NO_RULES, []),
    "minimum hold": ((KEPT, released(KEPT, 1.2, 1.25), acquire(B, 1.3, 1.4)), NO_RULES, ["minimum hold"]),
    "minimum hold over": ((KEPT, released(KEPT, 1.2, 1.25), acquire(B, 1.4, 1.55)), NO_RULES, []),
    "minimum hold, rounded": ((KEPT, released(KEPT, 1.2, 1.25), acquire(B, 1.4, 1.498)), NO_RULES, []),
    "minimum hold of those that wait": (
        (KEPT, released(KEPT, 1.2, 1.25), acquire(B, 0.9, 1.3, token=1001)), NO_RULES, ["minimum hold"]
    ),
    "skip after a release": ((FIRST, RELEASED, skip(B, 1.35, 1.4)), NO_RULES, ["grant lost"]),
    "skip during a release": ((FIRST, RELEASED, skip(B, 1.25, 1.4)), NO_RULES, []),
    "skip in a minimum hold": ((KEPT, released(KEPT, 1.2, 1.3), skip(B, 1.55, 1.6)), NO_RULES, []),
    "skip before any acquire": ((skip(B, 0.5, 0.6), FIRST), NO_RULES, ["grant lost"]),
    "skip in a lease": ((FIRST, skip(B, 2.0, 2.05)), NO_RULES, []),
    "skip after a lease": ((FIRST, skip(B, 2.15, 2.2)), NO_RULES, ["grant lost"]),
    "skip in an extension": ((FIRST, EXTENDED, skip(B, 2.55, 2.6)), NO_RULES, []),
    "skip after an extension": ((FIRST, EXTENDED, skip(B, 2.65, 2.7)), NO_RULES, ["grant lost"]),
    "skip after a shorter one": ((FIRST, SHORTER, skip(B, 1.55, 1.6)), NO_RULES, ["grant lost"]),
    "skip in a shorter one": ((FIRST, SHORTER, skip(B, 1.4, 1.45)), NO_RULES, []),
    "a longer one may come last": (
        (FIRST, then("extend", FIRST, 1.15, 1.25, "error", at_most=1.0), SHORTER, skip(B, 1.55, 1.6)), NO_RULES, []
    ),
    "what comes late extends": ((FIRST, FAILED, skip(B, 3.05, 3.1)), LATER, []),
    "what comes after the end does not": ((FIRST, FAILED, skip(B, 3.15, 3.2)), LATER, ["grant lost"]),
    "an extension that was sent twice": ((FIRST, replace(FAILED, ended=2.5), skip(B, 3.4, 3.45)), NO_RULES, []),
    "and no longer": ((FIRST, replace(FAILED, ended=2.5), skip(B, 3.55, 3.6)), NO_RULES, ["grant lost"]),
    "skip after a loss": (
        (FIRST, then("extend", FIRST, 1.3, 1.4, "lost", at_most=1.0), skip(B, 1.45, 1.5)), NO_RULES, ["grant lost"]
    ),
    "skip after a failure": ((GAVE_UP, skip(B, 2.0, 2.05)), NO_RULES, []),
    "trusted after a loss": (
        (FIRST, then("extend", FIRST, 1.3, 1.4, "lost", at_most=1.0, trusted_until=1.9)), NO_RULES, ["trust window"]
    ),
    "skip long after a failure": ((GAVE_UP, skip(B, 2.2, 2.3)), NO_RULES, ["grant lost"]),
    "an acquire that was sent twice": ((skip(A, 1.0, 2.1), skip(B, 1.2, 1.3), SECOND), NO_RULES, []),
    "an acquire that was not": ((skip(A, 1.0, 1.9), skip(B, 1.2, 1.3)), NO_RULES, ["grant lost", "grant lost"]),
    "crash bound": ((FIRST, skip(B, 2.15, 2.2)), {"marks": (KILLED,)}, ["crash bound"]),
    "within the crash bound": ((FIRST, skip(B, 2.0, 2.05)), {"marks": (KILLED,)}, []),
    "died in an acquire": ((PENDING, skip(B, 2.35, 2.4)), {"marks": (KILLED,)}, ["crash bound"]),
    "died in an acquire, a moment ago": ((PENDING, skip(B, 2.3, 2.35)), {"marks": (KILLED,)}, []),
    # A quorum
    "prompt claims in nobody's way": (
        (skip(A, 1.0, 1.03), skip(B, 1.01, 1.04)), {"rules": QUORUM}, ["grant lost", "grant lost"]
    ),
    "prompt claims, one granted": (
        (skip(A, 1.0, 1.03), skip(B, 1.01, 1.04), acquire("c", 1.02, 1.05)), {"rules": QUORUM}, []
    ),
    "a slow claim in the way": ((skip(A, 1.0, 1.06), skip(B, 1.01, 1.04)), {"rules": QUORUM}, []),
    "a slow claim before": ((skip(A, 1.0, 1.06), skip(B, 1.07, 1.08)), {"rules": QUORUM}, ["grant lost"]),
    "votes for the dead": ((PENDING, skip(B, 4.28, 4.3)), {"marks": (KILLED,), "rules": QUORUM}, []),
    "no votes for ever": ((PENDING, skip(B, 4.35, 4.38)), {"marks": (KILLED,), "rules": QUORUM}, ["crash bound"]),
    "a slow release": (
        (FIRST, released(FIRST, 1.2, 1.26), skip(B, 1.35, 1.38)), {"rules": QUORUM}, []
    ),
    "a prompt release": (
        (FIRST, released(FIRST, 1.2, 1.24), skip(B, 1.35, 1.38)), {"rules": QUORUM}, ["grant lost"]
    ),
    # Disturbances
    "held back": ((acquire(A, 1.3, 2.0, outcome="error", claim=""), skip(B, 6.3, 6.4)), DISTURBANCE, []),
    "held back no longer": (
        (acquire(A, 1.3, 2.0, outcome="error", claim=""), skip(B, 6.6, 6.7)), DISTURBANCE, ["grant lost"]
    ),
    "another worker's": (
        (acquire("c", 1.3, 2.0, outcome="error", claim=""), skip(B, 5.1, 5.2)), DISTURBANCE, ["grant lost"]
    ),
    "failed after it": ((acquire(A, 4.0, 5.1, outcome="error", claim=""), skip(B, 8.05, 8.09)), DISTURBANCE, []),
    "sent twice in it": ((acquire(A, 4.0, 4.1), skip(B, 6.4, 6.45)), DISTURBANCE, []),
    "sent twice, and over": ((acquire(A, 4.0, 4.1), skip(B, 6.55, 6.6)), DISTURBANCE, ["grant lost"]),
    # The moments at which copies reached the store are known.
    "the reply decides": ((reached(skip(A, 1.0, 1.9), 1.05), skip(B, 2.0, 2.05)), NO_RULES, ["grant lost"] * 2),
    "the copy before the reply": (
        (FIRST, RELEASED, reached(skip(A, 1.2, 1.9), 1.25, 1.5, replied_at=1.5), skip(B, 2.15, 2.2)),
        NO_RULES, ["grant lost"],
    ),
    "a copy after the reply is granted": (
        (FIRST, RELEASED, reached(skip(A, 1.2, 1.9), 1.25, 1.5, replied_at=1.25), skip(B, 2.45, 2.5)), NO_RULES, []
    ),
    "for one lease": (
        (FIRST, RELEASED, reached(skip(A, 1.2, 1.9), 1.25, 1.5, replied_at=1.25), skip(B, 2.55, 2.6)),
        NO_RULES, ["grant lost"],
    ),
    "each copy of an extension extends": (
        (reached(FIRST, 1.05), reached(FAILED, 1.95, 2.9), skip(B, 3.85, 3.9)), NO_RULES, []
    ),
    "and no longer than the last": (
        (reached(FIRST, 1.05), reached(FAILED, 1.95, 2.9), skip(B, 3.95, 4.0)), NO_RULES, ["grant lost"]
    ),
    "a copy after the end does not": (
        (reached(FIRST, 1.05), reached(FAILED, 1.95, 3.0), skip(B, 2.99, 3.05)), NO_RULES, ["grant lost"]
    ),
    "none that reached the store does": (
        (reached(FIRST, 1.05), reached(FAILED), skip(B, 2.1, 2.15)), NO_RULES, ["grant lost"]
    ),
    "a copy that a release has overtaken": (
        (reached(FIRST, 1.05), reached(FAILED, 3.0), reached(released(FIRST, 2.0, 2.03), 2.02), skip(B, 2.1, 2.15)),
        NO_RULES, ["grant lost"],
    ),
    # The holder's own knowledge
    "trusted after the window": ((FIRST, then("check", FIRST, 1.99, 2.0, "trusted")), NO_RULES, ["trust"]),
    "not trusted after it": ((FIRST, then("check", FIRST, 1.99, 2.0, "untrusted")), NO_RULES, []),
    "as long as granted": ((replace(FIRST, trusted_until=2.087),), NO_RULES, []),
    "longer than granted": ((replace(FIRST, trusted_until=2.089),), NO_RULES, ["trust window"]),
    "grows by itself": (
        (FIRST, then("check", FIRST, 1.2, 1.2, "trusted", trusted_until=2.05)), NO_RULES, ["trust window"]
    ),
    "grows by a heartbeat": (
        (replace(FIRST, keep_alive=True), then("check", FIRST, 1.2, 1.2, "trusted", trusted_until=2.05)), NO_RULES, []
    ),
}  # fmt: skip


def test_each_rule_finds_what_is_wrong_and_nothing_else() -> None:
    found = {case: rules_found(*operations, **facts) for case, (operations, facts, _) in CASES.items()}
    assert found == {case: expected for case, (_, _, expected) in CASES.items()}


@pytest.mark.parametrize(
    ("outcome", "at_most", "right", "wrong"),
    [
        ("done", 1.0, 2.587, 2.589),
        ("done", 0.2, 1.795, 1.988),
        ("done", 3.0, 4.567, 4.569),
        ("error", 3.0, 1.988, 1.99),
        ("error", 0.2, 1.795, 1.988),
        ("cancelled", 1.0, 1.988, 2.488),
    ],
)
def test_trust_after_an_extension_is_as_long_as_granted(
    outcome: str, at_most: float, right: float, wrong: float
) -> None:
    extended = then("extend", FIRST, 1.5, 1.6, outcome, at_most=at_most, trusted_until=right)
    assert rules_found(FIRST, extended) == []
    assert rules_found(FIRST, replace(extended, trusted_until=wrong)) == ["trust window"]


def test_of_two_extensions_whose_replies_a_stopped_process_sees_at_once_the_longer_counts() -> None:
    facts = {"at_most": 1.0, "trusted_until": 2.588}
    slow = reached(then("extend", FIRST, 1.3, 1.7, "done", **facts), 1.31)  # it saw the other reply first
    quick = reached(then("extend", FIRST, 1.6, 1.7, "done", **facts), 1.61)
    assert rules_found(FIRST, slow, quick) == []
    assert rules_found(FIRST, slow, replace(quick, ended=1.8)) == ["trust window"]


def test_a_stopped_process_may_look_at_its_lease_before_it_sees_a_reply() -> None:
    extended = then("extend", FIRST, 1.5, 2.5, "done", at_most=1.0, trusted_until=NEVER)
    look = then("check", FIRST, 2.5, 2.5, "untrusted")
    assert rules_found(FIRST, extended, look) == []
    assert rules_found(FIRST, extended, replace(look, started=2.51, ended=2.51)) == ["trust window"]


def test_a_keep_alive_that_stops_is_found() -> None:
    kept = replace(FIRST, keep_alive=True)
    failed = then("extend", kept, 1.2, 1.25, "error", at_most=1.0)
    end = released(kept, 2.4, 2.5)

    def checks(until: float) -> list[Operation]:
        moments = [kept.end + number * 0.02 for number in range(int((until - kept.end) / 0.02))]
        return [then("check", kept, m, m, "trusted" if m < kept.trusted_until else "untrusted") for m in moments]

    assert rules_found(kept, *checks(2.4), failed, end) == ["keep-alive"]
    assert rules_found(kept, *checks(1.3), failed, end) == [], "its process stood still"
    assert rules_found(kept, *checks(1.6), failed, end) == [], "it stood still in the second half"
    again = then("extend", kept, 1.6, 1.7, "error", at_most=1.0)
    assert rules_found(kept, *checks(2.4), failed, again, end) == []


def test_a_report_has_counts_take_overs_and_the_worst_overlap() -> None:
    report = check(History((FIRST, skip(B, 1.9, 1.91), acquire(B, 2.05, 2.1)), (KILLED,)))
    assert report.takeovers == [pytest.approx(0.8)]
    assert report.counts == {"acquire granted": 2, "acquire skipped": 1, "killed": 1}
    report = check(History((FIRST, acquire(B, 1.4, 1.5))), Rules(off=frozenset({"overlap"})))
    assert report.findings == []
    assert report.worst_overlap == pytest.approx(0.488)
