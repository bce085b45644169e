"""The short forms of "a clock a day ahead" and "callers that give up", and that both can find what they look for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.faults.registry import Budget
from tests.faults.scenarios import giving_up, wrong_clock
from tests.support.stores import Store, open_provider

STORES = ["sqlite", "postgres", "mariadb", "redis", "quorum", "mongodb"]


@pytest.mark.parametrize(
    "store",
    ["sqlite async", "postgres sync", "mariadb sync", "redis async", "quorum sync", "mongodb async"],
    indirect=True,
)
def test_i11_a_clock_a_day_ahead_stops_nobody(store: Store) -> None:
    report = wrong_clock.wrong_clock(store, Budget(0), seed=1)
    assert report.findings == []
    assert report.counts["acquire error"] >= wrong_clock.REFUSALS
    assert report.counts["acquire granted"] >= wrong_clock.GRANTS


def open_tolerant(**arguments: Any) -> Any:
    """A provider that takes any fire time, as every provider did."""
    options = {**arguments["options"], "fire_time_tolerance": "3000d"}
    return open_provider(**{**arguments, "options": options})


@pytest.mark.parametrize("store", ["redis sync"], indirect=True)
def test_without_a_tolerance_the_job_stops_everywhere(store: Store) -> None:
    with pytest.raises(AssertionError, match="grants to the right clocks"):
        wrong_clock.one_trial(store, 1, provider=f"{__name__}:open_tolerant", patience=2.0)


@pytest.mark.parametrize("store", [f"{store} async" for store in STORES], indirect=True)
def test_i12_callers_that_give_up(store: Store) -> None:
    report = giving_up.giving_up(store, Budget(0), seed=1)
    assert report.findings == []
    assert report.counts["acquire cancelled"] > 0


@pytest.mark.parametrize("store", ["redis async"], indirect=True)
def test_a_release_in_place_of_the_undo_is_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving_up, "PATIENCE", 0.5)
    monkeypatch.setattr(giving_up, "CALLERS", 5)
    report = asyncio.run(giving_up.one_trial(store, 1, undoes=False))
    assert {finding.rule for finding in report.findings} == {"fire time"}
