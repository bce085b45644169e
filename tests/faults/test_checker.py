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


def test_the_minimum_hold_keeps_those_out_that_were_waiting_before() -> None:
    first = acquire(A, 1.0, 1.1, at_least=0.5)
    waiting = acquire(B, 0.9, 1.3, token=1001)
    assert rules_found(first, released(first, 1.2, 1.25), waiting) == ["minimum hold"]
    assert rules_found(first, released(first, 1.2, 1.25), replace(waiting, ended=1.51)) == []
    assert rules_found(first, released(first, 1.2, 1.25), replace(waiting, token=999, trusted_until=1.0)) == []


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


def test_an_extension_that_arrives_after_the_lease_has_ended_extends_nothing() -> None:
    failed = then("extend", FIRST, 1.9, 2.0, "error", at_most=1.0)
    late = Rules(late=5.0)
    assert rules_found(FIRST, failed, skip(B, 3.05, 3.1), rules=late) == []
    assert rules_found(FIRST, failed, skip(B, 3.15, 3.2), rules=late) == ["grant lost"]
    again = then("extend", FIRST, 2.0, 2.05, "error", at_most=0.5)
    assert rules_found(FIRST, failed, again, skip(B, 3.55, 3.6), rules=late) == []
    assert rules_found(FIRST, failed, again, skip(B, 3.65, 3.7), rules=late) == ["grant lost"]
    shorter = then("extend", FIRST, 2.0, 2.05, "done", at_most=0.1, trusted_until=2.097)
    assert rules_found(FIRST, failed, shorter, skip(B, 3.1, 3.14), rules=late) == []
    assert rules_found(FIRST, failed, shorter, skip(B, 3.2, 3.24), rules=late) == ["grant lost"]


def test_a_skip_after_the_holder_was_told_that_it_has_lost() -> None:
    told = then("extend", FIRST, 1.3, 1.4, "lost", at_most=1.0)
    assert rules_found(FIRST, told, skip(B, 1.45, 1.5)) == ["grant lost"]
    assert rules_found(FIRST, told, skip(B, 1.45, 1.5), rules=Rules(late=0.1)) == [], "a minority may not know it yet"


def test_a_skip_in_a_minimum_hold_that_a_short_extension_does_not_cut() -> None:
    first = acquire(A, 1.0, 1.1, at_least=1.0)
    extended = then("extend", first, 1.2, 1.9, "done", at_most=0.1, trusted_until=1.3)
    assert rules_found(first, extended, skip(B, 2.7, 2.75)) == []
    assert rules_found(first, extended, skip(B, 2.85, 2.9)) == ["grant lost"]


def test_a_skip_after_a_shorter_extension() -> None:
    shorter = then("extend", FIRST, 1.2, 1.3, "done", at_most=0.2, trusted_until=1.396)
    assert rules_found(FIRST, shorter, skip(B, 1.4, 1.45)) == []
    assert rules_found(FIRST, shorter, skip(B, 1.55, 1.6)) == ["grant lost"]
    failed = then("extend", FIRST, 1.15, 1.25, "error", at_most=1.0)
    assert rules_found(FIRST, failed, shorter, skip(B, 1.55, 1.6)) == [], "it may have been done last"
    assert rules_found(FIRST, replace(failed, ended=1.18), shorter, skip(B, 1.55, 1.6)) == ["grant lost"]
    overlapping = replace(failed, ended=1.35, outcome="done")
    assert rules_found(FIRST, overlapping, shorter, skip(B, 1.55, 1.6)) == []
    assert rules_found(FIRST, overlapping, shorter, skip(B, 2.4, 2.45)) == ["grant lost"]


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


QUORUM = Rules(vote=3.0, prompt=0.05)


def test_a_prompt_claim_at_a_quorum_is_in_nobodys_way_unless_it_is_granted() -> None:
    attempts = skip(A, 1.0, 1.03), skip(B, 1.01, 1.04)
    assert rules_found(*attempts, rules=QUORUM) == ["grant lost", "grant lost"]
    assert rules_found(*attempts, acquire("c", 1.02, 1.05), rules=QUORUM) == []


def test_a_slow_claim_at_a_quorum_may_have_been_in_the_way() -> None:
    slow = skip(A, 1.0, 1.06)
    assert rules_found(slow, skip(B, 1.01, 1.04), rules=QUORUM) == []
    assert rules_found(slow, skip(B, 1.07, 1.08), rules=QUORUM) == ["grant lost"]


def test_a_quorum_waits_for_the_claim_of_whoever_died_or_failed() -> None:
    asking = acquire(A, 1.2, None, outcome=None, claim="", at_most=1.0)
    for claim, marks in ((asking, (Mark("killed", A, 1.3, 1.31),)), (replace(asking, ended=1.31, outcome="error"), ())):
        assert rules_found(claim, skip(B, 4.28, 4.3), marks=marks, rules=QUORUM) == []
        assert len(rules_found(claim, skip(B, 4.35, 4.38), marks=marks, rules=QUORUM)) == 1


def test_a_slow_release_may_have_left_a_server_of_a_quorum_alone() -> None:
    assert rules_found(FIRST, released(FIRST, 1.2, 1.24), skip(B, 1.35, 1.38), rules=QUORUM) == ["grant lost"]
    assert rules_found(FIRST, released(FIRST, 1.2, 1.26), skip(B, 1.35, 1.38), rules=QUORUM) == []


# disturbances

DISTURBED_A = (Mark("disturbed", A, 1.2, 5.0),)
AFTERWARDS = Rules(late=2.0, grace=0.5)


def test_what_was_held_back_arrives_until_the_disturbance_is_over() -> None:
    failed = acquire(A, 1.3, 2.0, outcome="error", claim="")
    early, late = skip(B, 6.3, 6.4), skip(B, 6.6, 6.7)
    assert rules_found(failed, early, marks=DISTURBED_A, rules=AFTERWARDS) == []
    assert rules_found(failed, late, marks=DISTURBED_A, rules=AFTERWARDS) == ["grant lost"]
    assert rules_found(failed, late, marks=DISTURBED_A, rules=Rules(late=8.0)) == ["grant lost"], "not for longer"
    by_another = replace(failed, worker="c")
    assert rules_found(by_another, skip(B, 5.1, 5.2), marks=DISTURBED_A, rules=AFTERWARDS) == ["grant lost"]
    everybodys = (replace(DISTURBED_A[0], worker="everybody"),)
    assert rules_found(by_another, skip(B, 5.1, 5.2), marks=everybodys, rules=AFTERWARDS) == []


def test_what_fails_after_a_disturbance_is_late_as_always() -> None:
    failed = acquire(A, 4.0, 5.1, outcome="error", claim="")
    assert rules_found(failed, skip(B, 8.05, 8.09), marks=DISTURBED_A, rules=AFTERWARDS) == []
    assert rules_found(failed, skip(B, 8.15, 8.2), marks=DISTURBED_A, rules=AFTERWARDS) == ["grant lost"]


def test_an_acquire_or_an_extend_in_a_disturbance_may_have_been_asked_twice() -> None:
    first = acquire(A, 4.0, 4.1)
    assert rules_found(first, skip(B, 5.2, 5.3)) == ["grant lost"]
    assert rules_found(first, skip(B, 5.2, 5.3), skip(B, 6.4, 6.45), marks=DISTURBED_A, rules=AFTERWARDS) == []
    assert rules_found(first, skip(B, 6.55, 6.6), marks=DISTURBED_A, rules=AFTERWARDS) == ["grant lost"]
    short = then("extend", first, 4.2, 4.3, "done", at_most=0.1, trusted_until=4.297)
    assert rules_found(first, short, skip(B, 4.45, 4.5)) == ["grant lost"]
    assert rules_found(first, short, skip(B, 5.5, 5.55), marks=DISTURBED_A, rules=AFTERWARDS) == []


# what the holder knows


def test_a_belief_that_is_not_by_the_clock() -> None:
    look = then("check", FIRST, 1.99, 2.0, "trusted")
    assert rules_found(FIRST, look) == ["belief"]
    assert rules_found(FIRST, replace(look, outcome="untrusted")) == []


def test_a_lease_is_believed_for_as_long_as_it_was_granted() -> None:
    assert rules_found(replace(FIRST, trusted_until=2.087)) == []
    assert rules_found(replace(FIRST, trusted_until=2.089)) == ["trust window"]


@pytest.mark.parametrize(
    ("outcome", "at_most", "right", "wrong"),
    [
        ("done", 1.0, 2.587, 2.589),
        ("done", 0.2, 1.795, 1.988),
        ("done", 3.0, 4.567, 4.569),
        ("error", 3.0, 1.988, 1.99),
        ("error", 0.2, 1.795, 1.988),
        ("cancelled", 1.0, 1.988, 2.488),
        ("lost", 1.0, NEVER, 2.488),
    ],
)
def test_an_extension_moves_the_trust_window(outcome: str, at_most: float, right: float, wrong: float) -> None:
    extended = then("extend", FIRST, 1.5, 1.6, outcome, at_most=at_most, trusted_until=right)
    assert rules_found(FIRST, extended) == []
    assert rules_found(FIRST, replace(extended, trusted_until=wrong)) == ["trust window"]


def test_an_extension_never_cuts_the_minimum_hold() -> None:
    first = acquire(A, 1.0, 1.1, at_least=0.9)
    extended = then("extend", first, 1.5, 1.6, "done", at_most=0.1, trusted_until=1.5 + 0.5 * 0.99 - 0.002)
    assert rules_found(first, extended) == []


def test_extensions_at_the_same_time() -> None:
    """Nobody knows which was done last; the longer must not be believed, but that is another rule's to say."""
    one = then("extend", FIRST, 1.5, 1.7, "done", at_most=1.0, trusted_until=1.7)
    other = then("extend", FIRST, 1.6, 1.65, "done", at_most=0.2, trusted_until=1.7)
    assert rules_found(FIRST, one, other) == []
    assert rules_found(FIRST, one, replace(other, trusted_until=2.4)) == []
    assert rules_found(FIRST, one, replace(other, trusted_until=2.8)) == ["trust window"]


def test_a_belief_that_grows_by_itself() -> None:
    look = then("check", FIRST, 1.2, 1.2, "trusted", trusted_until=2.05)
    assert rules_found(FIRST, look) == ["trust window"]
    kept = replace(FIRST, keep_alive=True)
    assert rules_found(kept, look) == [], "a heartbeat that was answered meanwhile"
    assert rules_found(kept, replace(look, trusted_until=2.1)) == ["trust window"]


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
    for seed in range(30):
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
        "extends too long": {"grant lost"},
        "trusts too long": {"overlap", "trust window"},
        "trusts no answer": {"trust window"},
        "is not narrowed": {"trust window"},
    }[fault]
    found = {f.rule for seed in range(30) for f in check(Simulation(Random(seed), fault).run(), RULES).findings}
    assert expected <= found
