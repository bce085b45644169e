"""The short form of fire times with skewed clocks and kills, and what its judge finds. I11."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shedlock_py import LockRequest
from tests.faults.checker import Rules
from tests.faults.history import History, Mark, Operation
from tests.faults.registry import Budget
from tests.faults.scenarios import fire_times
from tests.support.stores import Store, open_provider


@pytest.mark.parametrize(
    "store",
    ["sqlite async", "postgres sync", "mariadb async", "redis sync", "quorum async", "mongodb sync"],
    indirect=True,
)
def test_one_fire_time_one_run(store: Store) -> None:
    report = fire_times.fire_times(store, Budget(0), seed=1)
    assert report.findings == []
    assert report.counts["killed"] == fire_times.KILLS_PER_TRIAL
    assert report.counts["acquire granted"] >= fire_times.FIRE_TIMES_PER_TRIAL
    assert report.counts["fire time refused"] >= 1, "somebody was late for a fire time that had been granted"


def open_forgetful(**arguments: Any) -> Any:
    """A provider that does not look at fire times: what a plain lock does."""
    provider: Any = open_provider(**arguments)
    acquire = provider.acquire
    provider.acquire = lambda request: acquire(
        LockRequest(request.name, request.lock_at_most_for, request.lock_at_least_for, request.holder)
    )
    return provider


@pytest.mark.parametrize("store", ["redis sync", "redis async"], indirect=True)
def test_a_plain_lock_is_found(store: Store) -> None:
    report = fire_times.one_trial(store, 1, provider=f"{__name__}:open_forgetful", kills=0)
    assert {finding.rule for finding in report.findings} == {"fire time"}


# The judge itself

RUN = Operation("w1", "acquire", "job", 1.0, 1.1, "granted", "c1", 1, at_most=2.0, trusted_until=2.9, fire_time=100.0)
ENDED = replace(RUN, kind="release", started=1.2, ended=1.3, outcome="done", fire_time=None)
AGAIN = replace(RUN, worker="w2", started=1.4, ended=1.5, claim="c2", token=2, trusted_until=3.3)
SKIP = Operation("w3", "acquire", "job", 1.6, 1.7, "skipped", at_most=2.0, fire_time=100.0)
KILLED = Mark("killed", "w1", 1.15, 1.16)


def rules_found(*operations: Operation, marks: tuple[Mark, ...] = ()) -> list[str]:
    history = History(tuple(sorted(operations, key=lambda operation: operation.started)), marks)
    return [finding.rule for finding in fire_times.judge(history, Rules()).findings]


def test_a_fire_time_that_runs_twice() -> None:
    assert rules_found(RUN, ENDED, AGAIN) == ["fire time"]
    assert rules_found(RUN, ENDED, replace(AGAIN, fire_time=100.2)) == []
    assert rules_found(RUN, ENDED, replace(AGAIN, name="other job")) == []


def test_also_after_a_run_that_never_ended() -> None:
    again = replace(AGAIN, started=3.4, ended=3.5, trusted_until=5.3)
    assert rules_found(RUN, again, marks=(KILLED,)) == ["fire time"]
    assert rules_found(RUN, replace(again, fire_time=100.2), marks=(KILLED,)) == []


def test_an_older_fire_time() -> None:
    older = replace(AGAIN, fire_time=99.8)
    assert rules_found(RUN, ENDED, older) == ["fire time"]
    # Of two at the same moment the older may have come first.
    concurrent = replace(older, started=0.9, ended=1.05, trusted_until=0.95, at_most=0.05)
    assert rules_found(replace(RUN, started=1.0), ENDED, concurrent) == []


def test_a_skip_of_a_fire_time_that_has_been() -> None:
    assert rules_found(RUN, ENDED, SKIP) == []
    assert rules_found(RUN, ENDED, replace(SKIP, fire_time=99.8)) == []
    failed = replace(RUN, outcome="error", claim="", at_most=0.05)
    assert rules_found(failed, SKIP) == [], "it may have been granted"


@pytest.mark.parametrize("fire_time", [100.2, None])
def test_a_skip_without_a_reason(fire_time: float | None) -> None:
    assert rules_found(RUN, ENDED, replace(SKIP, fire_time=fire_time)) == ["grant lost"]
    assert rules_found(replace(RUN, outcome="skipped", claim=""), SKIP) == ["grant lost", "grant lost"]
