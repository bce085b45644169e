"""`shedlock run --expected-every`: after one run, `shedlock overdue` finds a command that is no longer started."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.cli.harness import in_a_process, provider_at
from tests.cli.runs import Runs

pytestmark = in_a_process


HISTORY: dict[str, str | None] = {"SHEDLOCK_HISTORY": "5"}


def test_the_run_says_when_the_next_one_is_due(runs: Runs) -> None:
    keeper: Any = provider_at(f"{runs.store}?history=5")
    keeper.create_schema()
    assert runs.run("job", "--at-most", "1m", "--expected-every", "25h", python="", variables=HISTORY)[0] == 0
    assert runs.run("job", "--at-most", "1m", "--expected-every", "1h", python="", variables=HISTORY)[0] == 0
    assert runs.run("job", "--at-most", "1m", python="", variables=HISTORY)[0] == 0
    ahead = [run.next_fire_time and run.next_fire_time - run.started for run in keeper.runs("job")]
    keeper.close()
    assert ahead[0] is None
    for expected, found in zip((timedelta(hours=1), timedelta(hours=25)), ahead[1:], strict=True):
        assert found is not None
        assert abs(found - expected) < timedelta(minutes=1)


def test_what_cannot_work_is_refused(runs: Runs) -> None:
    for wrong in ("0s", "often", "-1h"):
        code, out, err = runs.run("job", "--at-most", "1m", f"--expected-every={wrong}", python="print('ran')")
        assert (code, out) == (64, "")
        assert "--expected-every" in err
