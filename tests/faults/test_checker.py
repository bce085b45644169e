"""The checker finds what is wrong, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.checker import Report, Rules, check
from tests.faults.history import NEVER, History, Mark, Operation
from tests.faults.simulated import FAULTS, LATE, Simulation

A, B = "a", "b"


def acquire(worker: str, started: float, ended: float | None, **facts: Any) -> Operation:
    """Granted, as a rule: claim and token are by the worker's name and the moment."""
    given = {"outcome": "granted", "claim": f"{worker}{started}", "token": int(started * 1000), "at_most": 1.0}
    given["trusted_until"] = started + 0.988
    return Operation(worker, "acquire", "job", started, ended, **{**given, **facts})


def skip(worker: str, started: float, ended: float) -> Operation:
    return Operation(worker, "acquire", "job", started, ended, "skipped", at_most=1.0)


def then(
    kind: str, lease: Operation, started: float, ended: float | None, outcome: str | None, **facts: Any
) -> Operation:
    """What the holder of a lease does with it."""
    given = {"claim": lease.claim, "token": lease.token, "believed": lease.trusted_until}
    given["trusted_until"] = NEVER if kind == "release" else lease.trusted_until
    return Operation(lease.worker, kind, lease.name, started, ended, outcome, **{**given, **facts})


def released(lease: Operation, started: float, ended: float) -> Operation:
    return then("release", lease, started, ended, "done")


def rules_found(*operations: Operation, marks: tuple[Mark, ...] = (), rules: Rules | None = None) -> list[str]:
    history = History(tuple(sorted(operations, key=lambda operation: operation.started)), marks)
    return [finding.rule for finding in check(history, rules).findings]


# overlap

FIRST = acquire(A, 1.0, 1.1)


def test_two_trusted_leases() -> None:
    report = check(History((FIRST, released(FIRST, 1.8, 1.9), acquire(B, 1.4, 1.5))))
    assert [finding.rule for finding in report.findings] == ["overlap"]
    assert report.worst_overlap == pytest.approx(0.3)


def test_one_lease_after_the_other_was_released() -> None:
    assert rules_found(FIRST, released(FIRST, 1.4, 1.6), acquire(B, 1.45, 1.55)) == []


def test_one_lease_after_the_other_is_not_trusted_any_more() -> None:
    assert rules_found(FIRST, acquire(B, 1.95, 2.0)) == []


def test_an_extended_lease_is_trusted_longer() -> None:
    extended = then("extend", FIRST, 1.5, 1.6, "done", at_most=1.0, trusted_until=2.488)
    assert rules_found(FIRST, extended, acquire(B, 1.95, 2.05)) == ["overlap"]
    refused = replace(extended, outcome="lost", trusted_until=NEVER)
    assert rules_found(FIRST, refused, acquire(B, 1.95, 2.05)) == []


def test_while_an_extension_is_asked_for_the_lease_is_still_trusted() -> None:
    asked = then("extend", FIRST, 1.5, 1.9, "lost", at_most=1.0, trusted_until=NEVER)
    assert rules_found(FIRST, asked, acquire(B, 1.6, 1.7)) == ["overlap"]


def test_a_shorter_extension_narrows_the_trust_at_once() -> None:
    asked = then("extend", FIRST, 1.2, None, None, at_most=0.1)
    assert rules_found(FIRST, asked, acquire(B, 1.35, 1.4)) == []
    refused = replace(asked, ended=1.6, outcome="lost", trusted_until=NEVER)
    assert rules_found(FIRST, refused, acquire(B, 1.35, 1.4)) == []


def test_the_lease_of_a_dead_process_is_not_trusted() -> None:
    killed = Mark("killed", A, 1.3, 1.31)
    assert "overlap" in rules_found(FIRST, acquire(B, 1.2, 1.25), marks=(killed,))
    assert rules_found(FIRST, acquire(B, 1.35, 1.4), marks=(killed,)) == []


def test_a_stopped_process_trusts_its_lease_all_the_same() -> None:
    assert rules_found(FIRST, acquire(B, 1.35, 1.4), marks=(Mark("stopped", A, 1.2, 1.2),)) == ["overlap"]


# tokens and writes


def test_tokens_increase() -> None:
    later = acquire(B, 2.1, 2.2, token=999)
    assert rules_found(FIRST, later) == ["token"]
    assert rules_found(FIRST, replace(later, token=1001)) == []
    assert rules_found(FIRST, replace(later, token=None)) == []


def test_equal_tokens() -> None:
    concurrent = acquire(B, 0.9, 1.2, token=1000, trusted_until=0.0)
    assert rules_found(FIRST, concurrent) == ["token"]


def test_concurrent_acquires_may_have_their_tokens_in_any_order() -> None:
    assert rules_found(FIRST, acquire(B, 0.9, 1.2, token=999, trusted_until=0.0)) == []


def test_the_greatest_token_of_all_before_counts() -> None:
    second = acquire(B, 2.1, 2.2, token=3000)
    third = acquire(A, 3.2, 3.3, token=2000)
    assert rules_found(FIRST, released(FIRST, 1.2, 1.3), second, third) == ["token"]


def test_a_stale_write_that_is_accepted() -> None:
    second = acquire(B, 2.1, 2.2)
    news, olds = then("write", second, 2.3, 2.4, "done"), then("write", FIRST, 2.5, 2.6, "done")
    assert rules_found(FIRST, second, news, olds) == ["stale write"]
    assert rules_found(FIRST, second, news, replace(olds, outcome="refused")) == []
    assert rules_found(FIRST, second, news, replace(olds, started=2.35)) == []


def test_a_write_that_is_refused_while_its_lease_is_trusted() -> None:
    write = then("write", FIRST, 1.5, 1.6, "refused")
    assert rules_found(FIRST, write) == ["refused write"]
    assert rules_found(FIRST, replace(write, ended=1.99)) == []


# hold times


def test_minimum_hold() -> None:
    first = acquire(A, 1.0, 1.1, at_least=0.5)
    early, late = acquire(B, 1.3, 1.4), acquire(B, 1.4, 1.55)
    assert rules_found(first, released(first, 1.2, 1.25), early) == ["minimum hold"]
    assert rules_found(first, released(first, 1.2, 1.25), late) == []


def test_minimum_hold_does_not_count_backwards() -> None:
    first, second = acquire(A, 1.0, 1.5, token=2, at_least=0.9), acquire(B, 1.1, 1.2, token=1)
    assert rules_found(first, second, released(second, 1.25, 1.3)) == []


def test_a_skip_after_a_release() -> None:
    assert rules_found(FIRST, released(FIRST, 1.2, 1.3), skip(B, 1.35, 1.4)) == ["grant lost"]
    assert rules_found(FIRST, released(FIRST, 1.2, 1.3), skip(B, 1.25, 1.4)) == []


def test_a_skip_within_the_minimum_hold() -> None:
    first = acquire(A, 1.0, 1.1, at_least=0.5)
    assert rules_found(first, released(first, 1.2, 1.3), skip(B, 1.55, 1.6)) == []
    assert rules_found(first, released(first, 1.2, 1.3), skip(B, 1.75, 1.8)) == ["grant lost"]


def test_a_skip_before_anybody_had_it() -> None:
    assert rules_found(skip(B, 0.5, 0.6), FIRST) == ["grant lost"]
    assert rules_found(skip(B, 0.9, 1.05), FIRST) == []


def test_a_skip_after_a_lease_and_its_extension() -> None:
    extended = then("extend", FIRST, 1.5, 1.6, "error", at_most=1.0)
    assert rules_found(FIRST, skip(B, 2.0, 2.05)) == []
    assert rules_found(FIRST, skip(B, 2.15, 2.2)) == ["grant lost"]
    assert rules_found(FIRST, extended, skip(B, 2.55, 2.6)) == []
    assert rules_found(FIRST, extended, skip(B, 2.65, 2.7)) == ["grant lost"]
    assert rules_found(FIRST, extended, skip(B, 2.65, 2.7), rules=Rules(late=0.2)) == []


def test_a_skip_after_the_holder_was_told_that_it_has_lost() -> None:
    told = then("extend", FIRST, 1.3, 1.4, "lost", at_most=1.0)
    assert rules_found(FIRST, told, skip(B, 1.45, 1.5)) == ["grant lost"]
    assert rules_found(FIRST, told, skip(B, 1.45, 1.5), rules=Rules(late=0.1)) == [], "a minority may not know it yet"


def test_a_skip_in_a_minimum_hold_that_a_short_extension_does_not_cut() -> None:
    first = acquire(A, 1.0, 1.1, at_least=1.0)
    extended = then("extend", first, 1.2, 1.9, "done", at_most=0.1, trusted_until=1.3)
    assert rules_found(first, extended, skip(B, 2.7, 2.75)) == []
    assert rules_found(first, extended, skip(B, 2.85, 2.9)) == ["grant lost"]


def test_stores_that_count_milliseconds() -> None:
    assert rules_found(FIRST, released(FIRST, 1.2, 1.3), skip(B, 1.302, 1.31)) == []
    first = acquire(A, 1.0, 1.1, at_least=0.5)
    assert rules_found(first, released(first, 1.2, 1.3), acquire(B, 1.4, 1.498)) == []


def test_a_skip_after_an_attempt_that_failed() -> None:
    failed = acquire(A, 1.0, 1.1, outcome="error", claim="")
    assert rules_found(failed, skip(B, 2.0, 2.05)) == []
    assert rules_found(failed, skip(B, 2.2, 2.3)) == ["grant lost"]


def test_the_crash_bound() -> None:
    killed = (Mark("killed", A, 1.3, 1.31),)
    assert rules_found(FIRST, skip(B, 2.0, 2.05), marks=killed) == []
    assert rules_found(FIRST, skip(B, 2.15, 2.2), marks=killed) == ["crash bound"]


def test_the_crash_bound_of_a_process_that_died_asking() -> None:
    killed = (Mark("killed", A, 1.3, 1.31),)
    asking = acquire(A, 1.2, None, outcome=None, claim="")
    assert rules_found(asking, skip(B, 2.3, 2.35), marks=killed) == []
    assert rules_found(asking, skip(B, 2.35, 2.4), marks=killed) == ["crash bound"]


def test_attempts_at_a_quorum_may_prevent_each_other() -> None:
    attempts = skip(A, 1.0, 1.1), skip(B, 1.05, 1.2)
    assert rules_found(*attempts) == ["grant lost", "grant lost"]
    assert rules_found(*attempts, rules=Rules(attempts_block=True)) == []
    assert rules_found(*attempts, skip(A, 1.5, 1.6), rules=Rules(attempts_block=True)) == ["grant lost"]


# what the holder knows


def test_a_belief_that_is_not_by_the_clock() -> None:
    look = then("check", FIRST, 1.99, 2.0, "trusted")
    assert rules_found(FIRST, look) == ["belief"]
    assert rules_found(FIRST, replace(look, outcome="untrusted")) == []


def looks(lease: Operation, *, until: float) -> list[Operation]:
    moments = [lease.end + number * 0.02 for number in range(int((until - lease.end) / 0.02))]
    return [then("check", lease, m, m, "trusted" if m < lease.trusted_until else "untrusted") for m in moments]


def test_a_heart_that_stops() -> None:
    kept = replace(FIRST, keep_alive=True)
    failed = then("extend", kept, 1.2, 1.25, "error", at_most=1.0)
    end = released(kept, 2.4, 2.5)
    assert rules_found(kept, *looks(kept, until=2.4), failed, end) == ["keep-alive"]
    assert rules_found(kept, *looks(kept, until=1.3), failed, end) == [], "its process stood still"
    again = then("extend", kept, 1.6, 1.7, "error", at_most=1.0)
    assert rules_found(kept, *looks(kept, until=2.4), failed, again, end) == []


# figures


def test_take_over() -> None:
    history = History((FIRST, skip(B, 1.9, 1.91), acquire(B, 2.05, 2.1)), (Mark("killed", A, 1.3, 1.31),))
    report = check(history)
    assert report.takeovers == [pytest.approx(0.8)]
    assert report.counts == {"acquire granted": 2, "acquire skipped": 1, "killed": 1}


def test_rules_that_are_off_give_no_findings_but_figures() -> None:
    report = check(History((FIRST, acquire(B, 1.4, 1.5))), Rules(off=frozenset({"overlap"})))
    assert report.findings == []
    assert report.worst_overlap == pytest.approx(0.488)


# Any history of a correct lock

RULES = Rules(late=LATE)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_a_correct_lock_has_no_findings(seed: int) -> None:
    report = check(Simulation(Random(seed)).run(), RULES)
    assert report.findings == []
    assert report.worst_overlap == 0


def test_simulations_are_full_of_trouble() -> None:
    """Else the property says little."""
    total = Report()
    for seed in range(20):
        total.add(check(Simulation(Random(seed)).run(), RULES))
    for kind, outcomes in {
        "acquire": ("granted", "skipped", "error", "unended"),
        "extend": ("done", "lost", "error"),
        "release": ("done", "lost", "error"),
        "write": ("done", "refused"),
        "check": ("trusted", "untrusted"),
    }.items():
        assert min(total.counts[f"{kind} {outcome}"] for outcome in outcomes) >= 3, kind
    assert total.counts["killed"] >= 3


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_lock_is_found(fault: str) -> None:
    expected = {
        "double grant": {"overlap"},
        "token": {"token", "refused write"},
        "fence": {"stale write"},
        "minimum hold": {"minimum hold"},
        "holds too long": {"grant lost", "crash bound"},
        "trusts too long": {"overlap"},
    }[fault]
    found = {f.rule for seed in range(10) for f in check(Simulation(Random(seed), fault).run(), RULES).findings}
    assert expected <= found
