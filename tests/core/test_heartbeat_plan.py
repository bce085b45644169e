"""When heartbeats are due: arithmetic."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shedlock_py.guard.heartbeat_plan import HeartbeatPlan

LEASE = timedelta(seconds=12)


def plan(at: float = 100.0, random: float = 0.0) -> HeartbeatPlan:
    return HeartbeatPlan(LEASE, at, lambda: random)


def test_every_third_of_the_lease_and_a_sixth_after_one_without_reply() -> None:
    schedule = plan()
    assert schedule.due == 104
    schedule.sent(LEASE, 104)
    assert schedule.due == 106
    schedule.extended(LEASE, 104)
    assert schedule.due == 108
    schedule.extended(timedelta(seconds=3), 108)
    assert schedule.due == 109


@pytest.mark.parametrize("random", [0.0, 0.5, 1.0])
def test_failures_are_repeated_after_growing_pauses_and_several_fit_in(random: float) -> None:
    schedule = plan(random=random)
    now, pauses = schedule.due, []
    for _ in range(2000):
        schedule.failed(LEASE, now)
        pauses.append(schedule.due - now)
        now = schedule.due
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(0.5 * (0.5 + random / 2))
    assert max(pauses) == pytest.approx(2 * (0.5 + random / 2))  # a sixth
    trust_ends = 100 + 12 * 0.99
    moments = [104 + sum(pauses[:number]) for number in range(20)]
    assert sum(moment < trust_ends for moment in moments) >= 5
    assert schedule.failures == 2000
    schedule.extended(LEASE, now)
    assert schedule.failures == 0
