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
        (None, "99% of 41 runs took 41s or less. Without keep_alive, a lock_at_most_for of 3m is enough"),
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


def test_after_a_lost_lease_the_longest_run_counts() -> None:
    runs = [*(run(1) for _ in range(99)), run(600, "lost")]
    found = "1 of 100 runs lost their lease, and the longest run took 10m"
    assert advice(runs) == f"{found}. Without keep_alive, use a lock_at_most_for of 30m or more"
    better = f"{found}. lock_at_most_for is 10m. Better: use 30m, or keep_alive=True"
    assert advice(runs, timedelta(minutes=10)) == better


def test_a_lease_that_was_lost_early_is_no_reason_to_change_it() -> None:
    runs = [*(run(100) for _ in range(9)), run(90, "lost")]
    found = "1 of 10 runs lost their lease, and the longest run took 1m 40s. lock_at_most_for is 10m, which is longer"
    assert advice(runs, timedelta(minutes=10)) == f"{found}: see the log for the reason"


def test_one_run_in_a_hundred_may_be_longer() -> None:
    runs = [run(1) for _ in range(198)]
    assert (
        advice([*runs, run(3600), run(3600)])
        == "99% of 200 runs took 1.0s or less. Without keep_alive, a lock_at_most_for of 1m is enough"
    )


def test_runs_without_a_duration_do_not_count() -> None:
    unended, vanished, pause = run(1, None), run(1, "vanished"), run(1, "ok", f"{Pause('ann').holder}#0a")
    assert pause.is_pause
    assert advice([*RUNS[:9], unended, vanished, pause]) is None
    assert advice(RUNS[:10]) is not None


def test_a_run_of_days_needs_days() -> None:
    assert (
        advice([run(86400) for _ in range(10)])
        == "99% of 10 runs took 1d or less. Without keep_alive, a lock_at_most_for of 3d is enough"
    )
