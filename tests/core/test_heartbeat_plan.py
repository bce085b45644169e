"""When heartbeats are due: arithmetic."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shedlock_py.lease import HeartbeatPlan

LEASE = timedelta(seconds=12)


def plan(at: float = 100.0, random: float = 0.0) -> HeartbeatPlan:
    return HeartbeatPlan(LEASE, at, lambda: random)


def test_every_third_of_the_lease() -> None:
    beats = plan()
    assert beats.due == 104
    beats.extended(LEASE, 104)
    assert beats.due == 108
    beats.extended(timedelta(seconds=3), 108)
    assert beats.due == 109


def test_an_answer_is_waited_for_a_sixth_of_the_lease() -> None:
    beats = plan()
    beats.sent(LEASE, 104)
    assert beats.due == 106


@pytest.mark.parametrize("random", [0.0, 0.5, 1.0])
def test_failures_are_repeated_after_growing_pauses_and_several_fit_in(random: float) -> None:
    beats = plan(random=random)
    now, pauses = beats.due, []
    for _ in range(20):
        beats.failed(LEASE, now)
        pauses.append(beats.due - now)
        now = beats.due
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(0.5 * (0.5 + random / 2))
    assert max(pauses) == pytest.approx(2 * (0.5 + random / 2))  # a sixth
    trust_ends = 100 + 12 * 0.99
    moments = [104 + sum(pauses[:number]) for number in range(20)]
    assert sum(moment < trust_ends for moment in moments) >= 5
    assert beats.failures == 20
    beats.extended(LEASE, now)
    assert beats.failures == 0


def test_ten_thousand_failures_do_no_harm() -> None:
    beats = plan()
    for _ in range(10_000):
        beats.failed(LEASE, 104)
    assert beats.due == 105
