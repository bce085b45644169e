"""The decision that a job is overdue, without a store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from shedlock_py import LockRecord, ProviderError, ProviderUnreachable
from shedlock_py.model.overdue import DOCTOR, Punctuality, punctuality, recent_runs
from shedlock_py.model.run import Run

START = datetime(2026, 11, 23, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


def run(minutes: float, holder: str = "web-1", **values: Any) -> Run:
    """Return a run of one second that started ``minutes`` after :data:`START`."""
    started = START + minutes * MINUTE
    number = int(minutes * 60) + 1
    ended = {"ended": started + SECOND, "outcome": "ok"}
    return Run("job", number, f"{holder}#{number:032x}", started, **{**ended, **values})


def runs_at(*minutes: float, **values: Any) -> list[Run]:
    """Return runs, newest first; ``values`` belong to the newest."""
    newest, *others = sorted(minutes, reverse=True)
    return [run(newest, **values), *map(run, others)]


def record_of(last: Run, now: float, until: float | None = None) -> LockRecord:
    """Return the record of ``last``, read ``now`` minutes after :data:`START`."""
    lock_until = (last.ended or last.started) if until is None else START + until * MINUTE
    return LockRecord(
        last.name, last.locked_by, last.started, lock_until, last.fencing_token, None, read_at=START + now * MINUTE
    )


def judged(runs: list[Run], now: float, **options: Any) -> Punctuality:
    return punctuality(record_of(runs[0], now), runs, **options)


# Due runs


@pytest.mark.parametrize(("now", "state"), [(46, "on_time"), (46.01, "overdue")])
def test_the_next_fire_time(now: float, state: str) -> None:
    """The number of earlier runs does not matter."""
    job = judged(runs_at(0, 10, 20, 30, 40, next_fire_time=START + 45 * MINUTE), now)
    assert (job.state, job.due, job.basis) == (state, START + 45 * MINUTE, "next_fire_time")
    assert job.last_started == START + 40 * MINUTE


@pytest.mark.parametrize(("now", "state"), [(45, "on_time"), (45.01, "overdue")])
def test_the_cadence_with_a_grace_of_half_the_median(now: float, state: str) -> None:
    job = judged(runs_at(0, 10, 20, 30), now)
    assert (job.state, job.due, job.basis) == (state, START + 40 * MINUTE, "cadence")


@pytest.mark.parametrize(("now", "state"), [(5, "on_time"), (5.01, "overdue")])
def test_the_grace_of_a_cadence_is_a_minute_at_least(now: float, state: str) -> None:
    assert judged(runs_at(0, 1, 2, 3), now).state == state


def test_the_grace_can_be_longer() -> None:
    for now, state in ((70, "on_time"), (70.1, "overdue")):
        assert judged(runs_at(0, 10, 20, 30), now, grace=30 * MINUTE).state == state
        next_fire_time = START + 40 * MINUTE
        assert judged(runs_at(30, next_fire_time=next_fire_time), now, grace=30 * MINUTE).state == state


def test_one_late_run_does_not_change_the_cadence() -> None:
    assert judged(runs_at(0, 10, 20, 90, 100), 111).due == START + 110 * MINUTE


@pytest.mark.parametrize("number", [1, 2, 3])
def test_three_gaps_at_least(number: int) -> None:
    job = judged(runs_at(*range(0, 10 * number, 10)), 10_000)
    assert (job.state, job.due, job.basis) == ("unknown", None, None)
    assert job.last_started == START + 10 * (number - 1) * MINUTE


# Runs in progress


END = datetime.max.replace(tzinfo=UTC)


def test_times_at_the_end_of_the_calendar() -> None:
    """One odd record must not hide other records."""
    never_again = run(0, next_fire_time=END)
    assert judged([never_again], 10).state == "on_time"
    odd = replace(never_again, started=END, next_fire_time=None)
    assert judged([odd, *runs_at(30, 20, 10)], 40).state == "unknown"


def test_a_clock_of_the_store_that_was_set_back_again_and_again() -> None:
    """Tokens grow anyway, so each run seems to have started before the run that it follows."""
    runs = [replace(run(minute), fencing_token=token) for token, minute in enumerate((30, 20, 10, 0), 1)]
    assert judged(runs[::-1], 40).state == "overdue"


def running(*runs: Run, now: float, **options: Any) -> Punctuality:
    """Return the punctuality of a job with a held lock and a newest run that has no end."""
    return punctuality(record_of(runs[0], now, until=now + 1), runs, **options)


def test_a_job_that_runs_is_not_overdue() -> None:
    runs = runs_at(0, 10, 20, 30, ended=None, outcome=None, next_fire_time=START + 40 * MINUTE)
    job = running(*runs, now=39)
    assert (job.state, job.due, job.last_started) == ("running", None, START + 30 * MINUTE)
    assert punctuality(record_of(runs[0], 700, until=600), runs).state == "overdue"  # its holder has died


@pytest.mark.parametrize(("now", "state"), [(41, "running"), (41.01, "stuck")])
def test_i14_a_job_that_still_runs_when_its_next_run_is_due_is_stuck(now: float, state: str) -> None:
    """The duration of earlier runs does not matter."""
    runs = runs_at(0, 10, 20, 30, ended=None, outcome=None, next_fire_time=START + 40 * MINUTE)
    job = running(*runs, now=now)
    assert (job.state, job.basis) == (state, "next_fire_time" if state == "stuck" else None)
    assert job.due == (START + 40 * MINUTE if state == "stuck" else None)
    assert running(*runs, now=now, grace=5 * MINUTE).state == "running"


OPEN: dict[str, Any] = {"ended": None, "outcome": None}


def lasted(*durations: float, gap: float = 60) -> list[Run]:
    """Return one run per hour, of so many minutes each, newest first; then a run without an end, an hour later."""
    runs = [run(gap * n, ended=START + (gap * n + each) * MINUTE) for n, each in enumerate(durations)]
    return [run(gap * len(durations), **OPEN), *reversed(runs)]


@pytest.mark.parametrize(("minutes", "state"), [(31, "running"), (31.01, "stuck")])
def test_i14_a_job_without_a_next_fire_time_is_stuck_after_three_times_its_usual_duration(
    minutes: float, state: str
) -> None:
    job = running(*lasted(10, 1, 50), now=180 + minutes)
    assert (job.state, job.basis) == (state, "duration" if state == "stuck" else None)
    assert job.due == (START + 210 * MINUTE if state == "stuck" else None)


def test_three_runs_that_ended_well_say_what_is_usual() -> None:
    assert running(*lasted(10, 10), now=10_000).state == "running"
    newest, *others = lasted(10, 10, 10)
    for outcome in ("failed", "cancelled", "lost", "vanished"):
        other: Any = replace(others[1], outcome=outcome)
        assert running(newest, others[0], other, others[2], now=10_000).state == "running"


def test_an_election_is_not_stuck_however_long_its_leader_leads() -> None:
    """A term begins when another term ends, so the lock is held nearly all the time."""
    assert running(*lasted(59.5, 59.5, 59.5, 59.5), now=10_000).state == "running"
    assert running(*lasted(50, 50, 50, 50), now=10_000).state == "stuck"


def test_a_run_of_which_history_has_only_the_start_is_not_stuck() -> None:
    """History was not written at its end, and its lock has a minimum hold."""
    newest, *others = lasted(10, 10, 10)
    record = replace(record_of(newest, 500, until=600), is_released=True)
    assert punctuality(record, [newest, *others]).state == "overdue"
    assert running(replace(newest, name=DOCTOR), *others, now=500).state == "running"


def test_a_usual_duration_at_the_end_of_the_calendar() -> None:
    newest, *others = lasted(10, 10, 10)
    odd = replace(newest, started=END, next_fire_time=None)
    assert running(odd, *others, now=10_000).state == "running"


def test_a_minimum_hold_is_no_run() -> None:
    runs = runs_at(0, next_fire_time=START + 10 * MINUTE)
    assert punctuality(record_of(runs[0], 100, until=600), runs).state == "overdue"


def test_a_run_by_a_replica_without_history() -> None:
    """The run is in the record, but not in the history."""
    runs, newest = runs_at(0, 10, 20, 30, next_fire_time=START + 40 * MINUTE), run(40, "web-2")
    assert punctuality(record_of(newest, 44, until=50), runs).state == "running"
    job = punctuality(record_of(newest, 54), runs)
    assert (job.state, job.last_started, job.due, job.basis) == (
        "on_time", START + 40 * MINUTE, START + 50 * MINUTE, "cadence",
    )  # fmt: skip
    assert punctuality(record_of(newest, 56), runs).state == "overdue"


# Pauses


def paused(minutes: float, **values: Any) -> Run:
    return run(minutes, "paused by alice: migration", **values)


def test_a_paused_job_is_not_overdue() -> None:
    runs = [paused(35, ended=None, outcome=None), *runs_at(0, 10, 20, 30, next_fire_time=START + 40 * MINUTE)]
    job = punctuality(record_of(runs[0], 500, until=600), runs)
    assert (job.state, job.due, job.last_started) == ("paused", None, START + 30 * MINUTE)


@pytest.mark.parametrize("ended", [True, False])
def test_after_a_pause_it_is_due_a_gap_later(ended: bool) -> None:
    """The job could not run during the pause; the fire times that its scheduler planned were skipped."""
    end: dict[str, Any] = {} if ended else {"ended": None, "outcome": None}
    runs = [paused(35, **end), *runs_at(0, 10, 20, 30, next_fire_time=START + 40 * MINUTE)]
    for now, state in ((605, "on_time"), (615.1, "overdue")):
        job = punctuality(record_of(runs[0], now, until=600), runs)
        assert (job.state, job.due, job.basis) == (state, START + 610 * MINUTE, "cadence")


def test_a_next_run_that_is_after_the_pause_stays_due() -> None:
    runs = [paused(35), *runs_at(30, next_fire_time=START + 900 * MINUTE)]
    job = punctuality(record_of(runs[0], 901.1, until=600), runs)
    assert (job.state, job.basis) == ("overdue", "next_fire_time")


def test_pauses_are_no_runs_of_a_cadence() -> None:
    runs = [run(41), paused(35), paused(33), run(30), paused(25), run(20)]
    assert judged(runs, 1000).state == "unknown"


def test_what_was_paused_before_it_ever_ran() -> None:
    only = [paused(0)]
    assert punctuality(record_of(only[0], 10, until=20), only) == Punctuality("job", "paused", None)
    assert punctuality(record_of(only[0], 30, until=20), only) == Punctuality("job", "unknown", None)


def test_i5_the_runs_of_a_provider_that_reads_one_name_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    """Odd values of one name must not hide other names. An outage does not mean that no runs exist."""

    class OneAtATime:
        errors: ClassVar[dict[str, ProviderError]] = {"odd": ProviderError("odd values", operation="runs")}

        def runs(self, name: str, limit: int) -> list[Run]:
            if name in self.errors:
                raise self.errors[name]
            return [run(1)]

    provider = OneAtATime()
    assert recent_runs(provider, ["odd", "no name" * 20, "job"]) == {"job": [run(1)]}
    assert "odd values" in caplog.text
    provider.errors["job"] = ProviderUnreachable("no reply", operation="runs")
    with pytest.raises(ProviderUnreachable):
        recent_runs(provider, ["odd", "job"])
