"""The short form of force releases, take-overs and prunes in mid-hold, and what its judge finds. I1, I2, I4, I7."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.checker import Rules
from tests.faults.history import NEVER, History, Operation
from tests.faults.registry import Budget, Run
from tests.faults.scenarios import operators
from tests.support.stores import Store


@pytest.mark.parametrize(
    ("run", "store"),
    [
        (operators.operators, "sqlite sync"),
        (operators.operators, "postgres async"),
        (operators.operators, "mariadb sync"),
        (operators.operators, "redis async"),
        (operators.operators, "quorum sync"),
        (operators.operators, "mongodb async"),
        (operators.without_extra_columns, "postgres sync"),
        (operators.without_extra_columns, "mariadb async"),
    ],
    indirect=["store"],
)
def test_in_mid_hold(run: Run, store: Store) -> None:
    report = run(store, Budget(0), 1)
    assert report.findings == []
    for kind, outcome, number in operators.ACTIONS:
        assert report.counts[f"{kind} {outcome}"] >= number
    assert report.counts["extend lost"] + report.counts["release lost"] >= 1
    assert report.counts["write refused"] >= 1 or run is operators.without_extra_columns


# The judge itself

HELD = Operation("w1", "acquire", "job", 0.0, 0.1, "granted", "c1", 1, at_most=2.0, trusted_until=1.97)
FREED = Operation("m", "force_release", "job", 0.4, 0.5, "done")
NEXT = Operation("w2", "acquire", "job", 0.6, 0.7, "granted", "c2", 2, at_most=2.0, trusted_until=2.57)
SKIPPED = Operation("w3", "acquire", "job", 0.52, 0.55, "skipped", at_most=2.0)
TAKEN = replace(NEXT, worker="m", kind="take_over")
TOLD = Operation("w1", "release", "job", 0.8, 0.9, "lost", "c1", 1, believed=1.97)
PRUNED = Operation("m", "prune", "", 0.4, 0.5, "done")


def rules_found(*operations: Operation) -> list[str]:
    history = History(tuple(sorted(operations, key=lambda operation: operation.started)))
    return [finding.rule for finding in operators.judge(history, Rules(late=0.5))[0].findings]


def test_a_force_release_and_what_it_costs() -> None:
    report, overlap = operators.judge(History((HELD, FREED, NEXT, TOLD)), Rules())
    assert (report.findings, report.worst_overlap) == ([], 0.0)
    assert overlap == pytest.approx(0.1), "from the next grant until the holder asks"
    assert report.counts["force_release done"] == 1


def test_a_take_over() -> None:
    assert rules_found(HELD, TAKEN, TOLD) == []
    assert rules_found(HELD, replace(TAKEN, token=1), TOLD) == ["token"]
    assert rules_found(HELD, replace(TAKEN, token=0), TOLD) == ["token"]


@pytest.mark.parametrize("kind", ["extend", "release"])
def test_the_former_holder_does_nothing_to_the_lock(kind: str) -> None:
    done = replace(TOLD, kind=kind, outcome="done", at_most=0.1)
    assert "own writes" in rules_found(HELD, FREED, NEXT, done)
    assert "own writes" in rules_found(HELD, TAKEN, done)
    # It may have come first.
    early = replace(done, started=0.45)
    assert rules_found(HELD, FREED, early) == []


def test_the_name_is_free_at_once() -> None:
    assert rules_found(HELD, FREED, SKIPPED, TOLD) == ["grant lost"]
    assert rules_found(HELD, FREED, replace(SKIPPED, started=0.45), TOLD) == []
    minimum = replace(HELD, at_least=1.0)
    assert rules_found(minimum, FREED, replace(SKIPPED, started=0.62, ended=0.65), TOLD) == ["grant lost"]


def test_it_is_held_again_after_a_take_over() -> None:
    assert rules_found(HELD, TAKEN, replace(SKIPPED, started=1.0, ended=1.1), TOLD) == []
    after = replace(SKIPPED, started=2.8, ended=2.9)
    assert rules_found(HELD, TAKEN, after, TOLD) == ["grant lost"]


def test_tokens_do_not_restart() -> None:
    assert rules_found(HELD, FREED, replace(NEXT, token=1), TOLD) == ["token"]
    assert rules_found(HELD, FREED, PRUNED, replace(NEXT, token=0), TOLD) == ["token"]
    stale = Operation("w1", "write", "job", 1.0, 1.1, "done", "c1", 1)
    fresh = Operation("w2", "write", "job", 0.8, 0.9, "done", "c2", 2, trusted_until=2.57)
    assert rules_found(HELD, FREED, NEXT, fresh, stale) == ["stale write"]
    assert rules_found(HELD, FREED, NEXT, fresh, replace(stale, outcome="refused")) == []


def test_the_minimum_hold_of_those_that_nobody_met() -> None:
    third = replace(NEXT, worker="w3", started=0.9, ended=1.0, claim="c3", token=3)
    gone = Operation("w2", "release", "job", 0.75, 0.8, "done", "c2", 2)
    assert rules_found(HELD, FREED, NEXT, gone, third, TOLD) == []
    assert rules_found(HELD, FREED, replace(NEXT, at_least=1.0), gone, third, TOLD) == ["minimum hold"]


def test_an_overlap_with_another_lease_than_the_freed_one() -> None:
    third = replace(NEXT, worker="w3", started=0.9, ended=1.0, claim="c3", token=3)
    assert rules_found(HELD, FREED, NEXT, third, TOLD) == ["overlap"]


def test_a_prune_excuses_nothing() -> None:
    assert set(rules_found(HELD, PRUNED, NEXT, TOLD)) == {"overlap", "lost"}
    assert rules_found(HELD, PRUNED, TOLD) == ["lost"]
    assert rules_found(HELD, PRUNED, replace(TOLD, believed=0.85)) == [], "it was not trusted any more"
    assert rules_found(HELD, PRUNED, replace(TOLD, outcome="done")) == []


def test_a_force_release_that_finds_nothing() -> None:
    free = replace(FREED, outcome="free")
    assert rules_found(HELD, free) == ["force release"]
    assert rules_found(replace(HELD, trusted_until=0.45), free) == []
    assert rules_found(HELD, replace(TOLD, started=0.2, ended=0.3, outcome="done", trusted_until=NEVER), free) == []
    assert rules_found(replace(HELD, ended=0.45), free) == [], "it may have come before the grant"
    assert rules_found(HELD, FREED, replace(free, started=0.45, ended=0.55)) == [], "somebody else had freed it"


def test_a_force_release_without_an_answer_may_have_been_done() -> None:
    unknown = replace(FREED, outcome="error")
    assert rules_found(HELD, unknown, NEXT, TOLD) == []
    assert rules_found(HELD, unknown, SKIPPED, replace(TOLD, outcome="done")) == [], "or not"
