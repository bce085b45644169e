"""The advice on ``lock_at_most_for``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from shedlock_py.model.advice import advice
from shedlock_py.model.lease import RunOutcome
from shedlock_py.model.record import Pause
from shedlock_py.model.run import Run

START = datetime(2026, 11, 29, tzinfo=UTC)


def run(seconds: float, outcome: RunOutcome | None = "ok", holder: str = "web-1#0a") -> Run:
    end = None if outcome is None else START + timedelta(seconds=seconds)
    return Run("job", 1, holder, START, end, outcome)


RUNS = [run(seconds) for seconds in range(1, 42)]


@pytest.mark.parametrize(
    ("minutes", "found"),
    [
        (None, "99% of 41 runs took 41s or less: a lock_at_most_for of 3m is enough"),
        (3, None),
        (9, None),
        (
            30,
            "99% of 41 runs took 41s or less. lock_at_most_for is 30m: after a crash, nobody runs the job for so long. "
            "Better: use 3m, or keep_alive=True",
        ),
        (
            1,
            "99% of 41 runs took 41s or less. lock_at_most_for is 1m: a slow run outlives its lease, and another "
            "replica starts the job. Better: use 3m, or keep_alive=True",
        ),
    ],
)
def test_the_advice_compares_durations_with_lock_at_most_for(minutes: int | None, found: str | None) -> None:
    assert advice(RUNS, None if minutes is None else timedelta(minutes=minutes)) == found


def test_a_lost_lease_is_a_reason_to_use_more() -> None:
    runs = [*RUNS, run(400, "lost")]
    expected = "99% of 42 runs took 6m 40s or less, and 1 of them lost their lease"
    assert advice(runs) == f"{expected}: use 20m, or keep_alive=True"
    assert (advice(runs, timedelta(minutes=20)) or "").startswith(f"{expected}. lock_at_most_for is 20m: a slow run")


def test_one_run_in_a_hundred_may_be_longer() -> None:
    runs = [run(1) for _ in range(198)]
    assert (
        advice([*runs, run(3600), run(3600)]) == "99% of 200 runs took 1.0s or less: a lock_at_most_for of 1m is enough"
    )


def test_runs_without_a_duration_do_not_count() -> None:
    unended, vanished, pause = run(1, None), run(1, "vanished"), run(1, "ok", f"{Pause('ann').holder}#0a")
    assert pause.is_pause
    assert advice([*RUNS[:9], unended, vanished, pause]) is None
    assert advice(RUNS[:10]) is not None


def test_a_run_of_days_needs_days() -> None:
    assert (
        advice([run(86400) for _ in range(10)]) == "99% of 10 runs took 1d or less: a lock_at_most_for of 3d is enough"
    )
