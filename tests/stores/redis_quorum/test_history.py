"""Run history on a quorum: each server has its own history, and readers merge a majority's histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import LockRequest
from shedlock_py.model.run import Run
from shedlock_py.providers.redis.quorum.majority import Majority, merged_runs
from tests.stores.redis_quorum.quorums import NAME, Quorum, acquired
from tests.support.locks import outcomes
from tests.support.logs import warnings_of

START = datetime(2026, 7, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
RUN = Run("job", 7, "me#1", START)
ENDED = replace(RUN, ended=START + SECOND, outcome="ok")


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        ([[RUN], [RUN], [RUN]], [None]),
        ([[RUN], [RUN], []], [None]),
        ([[RUN], [], []], []),  # a claim that failed
        ([[RUN], []], [None]),  # the server that did not reply may have it
        ([[RUN], [RUN], [ENDED]], ["ok"]),
        ([[ENDED], [], []], ["ok"]),  # it was granted, then two servers were emptied
        ([[ENDED], [replace(ENDED, outcome="lost")], [ENDED]], ["ok"]),
        ([[RUN], [replace(RUN, locked_by="me#2")], [replace(RUN, locked_by="me#2")]], [None]),
        ([[], []], []),
    ],
)
def test_a_run_counts_if_a_majority_may_have_it(found: Sequence[Sequence[Run]], outcome: list[str | None]) -> None:
    assert [run.outcome for run in merged_runs(found, Majority(3))] == outcome


def test_a_claim_that_failed_has_the_token_of_another() -> None:
    won, failed = replace(RUN, locked_by="me#2"), RUN
    assert merged_runs([[failed], [won], [won]], Majority(3)) == [won]


def test_a_duration_is_by_one_server_whatever_their_clocks() -> None:
    """The merged record has the start, and one server has the duration."""
    first, second, third = (
        replace(RUN, started=START + hours * 3600 * SECOND, ended=START + hours * 3600 * SECOND + SECOND, outcome="ok")
        for hours in (0, 5, 9)
    )
    for found in ([[first], [second], [third]], [[third], [first], [second]]):
        [run] = merged_runs(found, Majority(3))
        assert (run.started, run.duration) == (second.started, SECOND)
    [run] = merged_runs([[replace(first, ended=None, outcome=None)], [third]], Majority(3))
    assert (run.started, run.duration) == (START, SECOND)


@pytest.mark.usefixtures("long_grace")
def test_a_server_that_is_away_hides_no_run(quorum: Quorum, kind: str) -> None:
    """It misses starts and ends. The other servers have them, and it hides no run after its return."""
    keeper: Any = quorum.provider(kind=kind, history=3)
    rest: Any = quorum.provider(kind=kind, history=3, without=range(quorum.size - quorum.majority))
    lease = acquired(keeper)
    started = keeper.runs(NAME)[0].started
    assert rest.release(lease)
    assert outcomes(keeper, NAME) == ["ok"]
    assert keeper.runs(NAME)[0].started == started
    rest.release(acquired(rest))
    assert outcomes(keeper, NAME) == outcomes(rest, NAME) == ["ok", "ok"]
    acquired(keeper)
    assert outcomes(keeper, NAME) == [None, "ok", "ok"]
    assert keeper.take_over(LockRequest(NAME, "1m"))
    assert outcomes(keeper, NAME) == [None, "vanished", "ok"]


@pytest.mark.usefixtures("long_grace")
def test_a_claim_that_only_a_minority_has_is_no_run(quorum: Quorum) -> None:
    keeper: Any = quorum.provider(history=3)
    assert keeper.release(acquired(keeper))
    lease = acquired(keeper)
    for number in range(quorum.majority - 1, quorum.size):
        quorum.send(number, "HSET", quorum.key(), "run:1", "", "run_slot", 0)
    assert outcomes(keeper, NAME) == ["ok"]
    assert keeper.release(lease)
    assert outcomes(keeper, NAME) == ["ok", "ok"], "its end is known on a minority"


@pytest.mark.usefixtures("long_grace")
def test_runs_are_kept_for_ten_years(quorum: Quorum) -> None:
    keeper: Any = quorum.provider(history=3)

    def assert_kept(days: int) -> None:
        for number in range(quorum.size):
            assert round(quorum.send(number, "PTTL", quorum.key()) / 86_400_000) == days
            quorum.send(number, "EXPIRE", quorum.key(), 86_400)

    lease = acquired(keeper)
    assert_kept(3652)
    assert keeper.extend(lease, "59m")
    assert_kept(3652)
    assert keeper.release(lease)
    assert_kept(3652)
    assert quorum.provider().release(acquired(quorum.provider()))
    assert_kept(30)


@pytest.mark.usefixtures("long_grace")
@pytest.mark.parametrize("history", [0, 3])
def test_a_force_release_leaves_the_runs_where_they_are(quorum: Quorum, kind: str, history: int) -> None:
    """A tool without history may do the release. The records' expiry stays the same."""
    keeper: Any = quorum.provider(kind=kind, history=3)
    lease = acquired(keeper)
    assert quorum.provider(history=history).force_release(NAME)
    assert outcomes(keeper, NAME) == [None]
    assert keeper.release(lease) is False
    assert outcomes(keeper, NAME) == ["lost"]
    assert keeper.release(acquired(keeper))
    assert outcomes(keeper, NAME) == ["ok", "lost"]
    for number in range(quorum.size):
        assert round(quorum.send(number, "PTTL", quorum.key()) / 86_400_000) == 3652
        assert quorum.send(number, "HGET", quorum.key(), "run:0").endswith(b"\nlost\n")


@pytest.mark.usefixtures("long_grace")
def test_i8_a_server_that_cannot_write_history_disturbs_nobody(
    quorum: Quorum, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    keeper: Any = quorum.provider(kind=kind, history=3)
    lost = acquired(keeper)
    keeper.take_over(LockRequest(NAME, "1m"))
    try:
        quorum.send(0, "CONFIG", "SET", "min-replicas-to-write", 1)
        assert keeper.release(lost) is False
    finally:
        quorum.send(0, "CONFIG", "SET", "min-replicas-to-write", 0)
    [warning] = warnings_of(caplog, "run history is not written")
    assert "NOREPLICAS" in warning
    assert outcomes(keeper, NAME) == [None, "lost"], "other servers wrote it"
    assert keeper.force_release(NAME)
    assert keeper.release(acquired(keeper))
