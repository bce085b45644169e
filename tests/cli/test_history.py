"""``shedlock history`` and ``shedlock overdue``."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import InMemoryLockProvider, LockProvider, LockRecord, LockRequest, ProviderError
from shedlock_py.model.run import Run
from shedlock_py.operators.checks import NAME as DOCTOR
from shedlock_py.operators.checks import checks_of
from shedlock_py.page import page_app
from shedlock_py.testing import FakeClock
from tests.cli.harness import run
from tests.page.client import Client
from tests.support.holders import unchecked

FIRE_TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RED, GREEN, YELLOW = "\x1b[31m", "\x1b[32m", "\x1b[33m"

clock = FakeClock()
provider = InMemoryLockProvider(clock=clock, history=10)
"""The store of these tests: ``--store tests.cli.test_history:provider``. Tests advance its clock."""
LONG = InMemoryLockProvider(shared_with=provider, history=50)
without_history = InMemoryLockProvider(shared_with=provider)
STORE = f"{__name__}:provider"


@pytest.fixture(autouse=True)
def _empty() -> None:
    for record in provider.records():
        provider.force_release(record.name)
    provider.prune(0)


def ran(
    name: str, seconds: float = 1.5, error: Exception | None = None, *, by: LockProvider = provider, **values: Any
) -> None:
    lease = by.acquire(LockRequest(name, "1h", holder="web-1:7", **values))
    assert lease is not None
    clock.advance(seconds)
    if error is not None:
        lease.outcome, lease.error = "failed", f"ValueError: {error}"
    by.release(lease)


def every(name: str, gap: str, times: int, **values: Any) -> None:
    for _ in range(times):
        ran(name, 0, **values)
        clock.advance(gap)


# history


def test_history_lists_each_run_with_its_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    ran("job", fire_time=FIRE_TIME)
    ran("job", 90, ValueError("no such file"))
    provider.acquire(LockRequest("job", "1m", holder="web-2:8"))
    clock.advance("1m")
    provider.pause("job", "5m", "migration", by="alice")
    clock.advance("2m")
    provider.resume("job")
    provider.acquire(LockRequest("job", "1h", holder="web-3:9"))
    clock.advance("42s")
    done = run("history", "job", store=STORE)
    assert (done.exit_code, done.stderr) == (0, "")
    title, *lines = done.stdout.splitlines()
    assert title.split() == ["STARTED", "TOOK", "OUTCOME", "HOLDER", "TOKEN", "FIRE_TIME", "ERROR"]
    runs = provider.runs("job")
    assert [line.split()[0] for line in lines] == [
        run.started.astimezone().isoformat(timespec="seconds") for run in runs
    ]
    assert [" ".join(line.split()[1:]) for line in lines] == [
        f"42s running web-3:9 {runs[0].fencing_token} - -",
        f"2m paused paused by alice: migration {runs[1].fencing_token} - -",
        f"- vanished web-2:8 {runs[2].fencing_token} - -",
        f"1m 30s failed web-1:7 {runs[3].fencing_token} - ValueError: no such file",
        f"1.5s ok web-1:7 {runs[4].fencing_token} {FIRE_TIME.astimezone().isoformat()} -",
    ]
    done = run("history", "job", "--limit", "2", store=STORE)
    assert [line.split()[:3] for line in done.stdout.splitlines()[1:]] == [line.split()[:3] for line in lines[:2]]


def test_a_demotion_is_no_term_of_a_leader() -> None:
    for holder in ("node-1", "demoted 0ms node-1", "node-2"):
        provider.acquire(unchecked("election", "1m", holder))
        clock.advance("1m")
    shown = [line.split()[2] for line in run("history", "election", store=STORE).stdout.splitlines()[1:]]
    assert shown == ["unfinished", "demoted", "vanished"]


def test_a_run_whose_holder_died_has_no_end() -> None:
    provider.acquire(LockRequest("job", "1m", holder="web-2:8"))
    clock.advance("1m")
    assert run("history", "job", store=STORE).stdout.splitlines()[1].split()[1:3] == ["-", "unfinished"]


def test_history_as_json() -> None:
    next_fire_time = FIRE_TIME + timedelta(hours=1)
    ran("job", error=ValueError("x"), fire_time=FIRE_TIME, next_fire_time=next_fire_time)
    provider.pause("job", "5m", "migration", by="alice")
    pause, failed = json.loads(run("history", "job", "--json", store=STORE).stdout)
    [record] = provider.runs("job")[1:]
    assert record.ended is not None
    assert failed == {
        "name": "job", "fencing_token": record.fencing_token, "holder": "web-1:7", "locked_by": record.locked_by,
        "started": record.started.isoformat(timespec="microseconds"),
        "ended": record.ended.isoformat(timespec="microseconds"), "duration": 1.5, "outcome": "failed",
        "recoveries": 0, "running": False, "pause": False, "demotion": False, "error": "ValueError: x",
        "fire_time": "2026-01-02T03:04:05.000000+00:00", "next_fire_time": "2026-01-02T04:04:05.000000+00:00",
    }  # fmt: skip
    assert (pause["holder"], pause["pause"], pause["running"]) == ("paused by alice: migration", True, True)
    assert (pause["ended"], pause["duration"], pause["outcome"], pause["error"]) == (None, None, None, None)


def test_a_lock_without_runs() -> None:
    without_history.acquire(LockRequest("job", "1m"))
    done = run("history", "job", store=STORE)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "no runs of 'job' in the history\n")
    assert run("history", "job", "--json", store=STORE).stdout == "[]\n"
    done = run("history", "jbo", store=STORE)
    assert (done.exit_code, done.stderr) == (1, "shedlock: the store has no lock 'jbo'; did you mean 'job'?\n")


class WithoutRuns:
    """A provider that was not made with the kit."""

    def __init__(self) -> None:
        for name in (name for name in dir(LockProvider) if not name.startswith("_")):
            setattr(self, name, getattr(provider, name))

    def __repr__(self) -> str:
        return "<their provider>"


@pytest.mark.parametrize("arguments", [("history", "job"), ("overdue",)])
@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("without_history", "this provider keeps no run history: open it with history=50, in the URL ?history=50"),
        ("WithoutRuns", "<their provider> keeps no run history: it has no runs()"),
    ],
)
def test_a_store_that_keeps_no_history_is_refused(arguments: tuple[str, ...], store: str, message: str) -> None:
    ran("job")
    done = run(*arguments, store=f"{__name__}:{store}")
    assert (done.exit_code, done.stdout, done.stderr) == (78, "", f"shedlock: {message}\n")


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "many"])
def test_a_limit_that_cannot_be(limit: str) -> None:
    done = run("history", "job", "--limit", limit, store=STORE)
    assert (done.exit_code, done.stdout) == (64, "")
    assert "--limit" in done.stderr


def test_hostile_errors_control_no_terminal() -> None:
    ran("job")
    hostile = replace(provider.runs("job")[0], error="\x1b[2J[red]x[/red]\u202e")  # another program may write this
    provider.programs.store.execute(lambda records, _: records.runs.update(job=[hostile]), None)
    done = run("history", "job", store=STORE)
    assert all(line.isprintable() for line in done.stdout.split("\n"))
    assert "\\x1b[2J[red]x[/red]\\u202e" in done.stdout


def test_history_in_colour(on_terminal: None) -> None:
    ran("job")
    ran("job", error=ValueError("x"))
    provider.pause("job", "1m", by="alice")
    shown = run("history", "job", store=STORE, NO_COLOR="", FORCE_COLOR="1", TERM="xterm", COLUMNS="200").stdout
    assert [colour in shown for colour in (f"{GREEN}ok", f"{RED}failed", f"{YELLOW}paused")] == [True] * 3


def test_history_that_is_piped_is_a_run_a_line_also_with_force_color() -> None:
    ran("job", error=ValueError("x" * 100))
    plain = run("history", "job", store=STORE).stdout
    assert run("history", "job", store=STORE, NO_COLOR="", FORCE_COLOR="1", TERM="xterm").stdout == plain
    assert len(plain.splitlines()) == 2


# overdue


def test_nothing_is_overdue() -> None:
    every("report", "10m", 4)
    ran("new")
    done = run("overdue", store=STORE)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "no job is overdue: 2 locks, 1 of them with too few runs to know\n"


def test_a_job_that_is_overdue() -> None:
    every("report", "10m", 4)
    ran("hourly", 1, next_fire_time=provider.runs("report")[0].started + timedelta(hours=5))
    clock.advance("6m")
    done = run("overdue", store=STORE)
    assert (done.exit_code, done.stderr) == (1, "")
    title, line = done.stdout.splitlines()
    assert title.split() == ["LOCK", "STATE", "LAST_START", "DUE", "LATE", "BY"]
    name, state, last, due, *rest = line.split()
    assert (name, state, rest) == ("report", "overdue", ["6m", "1s", "usual", "gap"])
    assert datetime.fromisoformat(due) - datetime.fromisoformat(last) == timedelta(minutes=10)
    assert run("overdue", "--grace", "10m", store=STORE).exit_code == 0
    assert run("overdue", "hour", store=STORE).exit_code == 0
    assert run("overdue", "rep", store=STORE).exit_code == 1


def test_by_its_scheduler() -> None:
    ran("report", 1, next_fire_time=clock_now() + timedelta(hours=1))
    clock.advance("1h")
    assert run("overdue", store=STORE).exit_code == 0
    clock.advance("1m")
    done = run("overdue", store=STORE)
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1].split()[-3:] == ["1m", "1s", "planned"]


def clock_now() -> datetime:
    store = provider.programs.store
    return store.epoch + timedelta(seconds=store.clock())


def test_a_paused_job_is_listed_as_paused_and_is_not_overdue() -> None:
    every("report", "10m", 4)
    provider.pause("report", "5h", "migration", by="alice")
    clock.advance("4h")
    done = run("overdue", store=STORE)
    assert (done.exit_code, done.stderr) == (0, "")
    name, state, *_ = done.stdout.splitlines()[1].split()
    assert (name, state) == ("report", "paused")
    assert done.stdout.rstrip("\n").endswith(" by alice: migration")
    every("other", "10m", 4)
    clock.advance("6m")
    done = run("overdue", store=STORE)
    assert done.exit_code == 1
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [["other", "overdue"], ["report", "paused"]]


def test_a_running_job_is_not_overdue() -> None:
    for _ in range(4):
        ran("report", 300)
        clock.advance("10m")
    provider.acquire(LockRequest("report", "5h"))
    clock.advance("15m")
    assert run("overdue", store=STORE).exit_code == 0


def test_i14_a_job_that_hangs_is_stuck() -> None:
    for _ in range(4):
        ran("report", 300)
        clock.advance("10m")
    ran("late", 1, next_fire_time=clock_now() + timedelta(minutes=5))
    provider.acquire(LockRequest("report", "5h"))
    provider.pause("paused", "5h", by="alice")
    clock.advance("17m")
    done = run("overdue", store=STORE)
    assert (done.exit_code, done.stderr) == (1, "")
    lines = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [line[:2] for line in lines] == [["report", "stuck"], ["late", "overdue"], ["paused", "paused"]]
    assert lines[0][4:] == ["2m", "usual", "duration"]
    assert run("overdue", "--grace", "2m", "report", store=STORE).exit_code == 0
    [job] = json.loads(run("overdue", "report", "--json", store=STORE).stdout)
    assert (job["state"], job["basis"], job["late"]) == ("stuck", "duration", 120)


@pytest.mark.parametrize("command", ["list", "show"])
def test_list_and_show_as_json_know_what_is_stuck(command: str) -> None:
    lease = provider.acquire(LockRequest("job", "5h", next_fire_time=clock_now() + timedelta(hours=1)))
    assert lease is not None

    def stuck(store: str = STORE) -> object:
        found = json.loads(run(command, "job", "--json", store=store).stdout)
        return (found[0] if command == "list" else found)["stuck"]

    assert stuck() is False
    clock.advance("62m")
    assert stuck() is True
    assert stuck(f"{__name__}:without_history") is stuck(f"{__name__}:WithoutRuns") is None
    provider.release(lease)
    assert stuck() is False


def test_jobs_with_too_few_runs_have_an_exit_code_of_their_own() -> None:
    deque(checks_of(provider), maxlen=0)
    # the doctor's lock does not belong to a job
    assert run("overdue", "--unknown-exit-code", "3", store=STORE).exit_code == 0
    ran("new")
    done = run("overdue", "--unknown-exit-code", "3", store=STORE)
    assert (done.exit_code, done.stderr) == (3, "no job is overdue: 2 locks, 1 of them with too few runs to know\n")
    assert run("overdue", "--json", "--unknown-exit-code", "3", store=STORE).exit_code == 3
    every("report", "10m", 4)
    clock.advance("6m")
    done = run("overdue", "--unknown-exit-code", "3", store=STORE)
    assert (done.exit_code, done.stderr) == (1, "3 locks, 1 of them with too few runs to know\n")


def test_overdue_as_json() -> None:
    every("late", "10m", 4)
    clock.advance("10m")
    ran("new")
    provider.pause("paused", "5h", "migration", by="alice")
    done = run("overdue", "--json", store=STORE)
    assert done.exit_code == 1
    late, new, paused = json.loads(done.stdout)
    started = provider.runs("late")[0].started
    assert late == {
        "name": "late", "state": "overdue", "basis": "cadence", "late": 601.5,
        "last_started": started.isoformat(timespec="microseconds"),
        "due": (started + timedelta(minutes=10)).isoformat(timespec="microseconds"),
        "paused_by": None, "pause_reason": None, "paused_until": None,
    }  # fmt: skip
    assert (new["state"], new["due"], new["basis"], new["late"]) == ("unknown", None, None, None)
    assert (paused["state"], paused["paused_by"], paused["pause_reason"]) == ("paused", "alice", "migration")
    assert paused["paused_until"] is not None


def test_the_lock_of_the_doctor_is_no_job() -> None:
    """An operator runs it many times within milliseconds, so it is never due."""
    deque(checks_of(provider), maxlen=0)
    assert len(provider.runs(DOCTOR)) >= 5
    clock.advance("1d")
    assert run("overdue", store=STORE).exit_code == 0
    [job] = json.loads(run("overdue", "--json", store=STORE).stdout)
    assert (job["name"], job["state"], job["due"]) == (DOCTOR, "unknown", None)


@pytest.mark.parametrize(("hours", "is_overdue"), [(30, False), (37, True)])
def test_the_page_shows_the_same(hours: int, is_overdue: bool) -> None:
    """The job was hourly for long and is daily now. The same runs decide for page and command."""
    every("report", "1h", 40, by=LONG)
    every("report", "1d", 9, by=LONG)
    ran("report", 0, by=LONG)
    clock.advance(f"{hours}h")
    assert run("overdue", store=f"{__name__}:LONG").exit_code == is_overdue
    shown = Client(page_app(LONG)).html("/?show=overdue")
    assert ("report" in shown) == is_overdue


def test_many_locks_cost_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        ran(f"job-{number:03}", 0)
    requests: list[int] = []
    recent_runs = provider.recent_runs

    def counted(names: Sequence[str], limit: int) -> dict[str, list[Run]]:
        requests.append(len(names))
        return recent_runs(names, limit)

    monkeypatch.setattr(provider, "recent_runs", counted)
    monkeypatch.setattr(provider, "runs", lambda name, limit: pytest.fail("one request for each lock"))
    assert run("overdue", store=STORE).stderr.startswith("no job is overdue: 300 locks")
    assert requests == [200, 100]


class Odd(InMemoryLockProvider):
    """The store contains another program's data: names that the library refuses, runs with odd values."""

    def __init__(self) -> None:
        super().__init__(shared_with=provider, history=10)

    def records(self, prefix: str = "") -> list[LockRecord]:
        found = super().records(prefix)
        return [*found, *(replace(found[0], name=name) for name in ("", "a\nb", "x" * 100))]

    def runs(self, name: str, limit: int = 50) -> list[Run]:
        if name == "odd":
            raise ProviderError("runs of lock 'odd': its outcome is 'odd'", operation="runs", lock_name="odd")
        return super().runs(name, limit)


class OddOneByOne(Odd):
    """A foreign provider without a method for many names."""

    recent_runs = None  # type: ignore[assignment]  # in place of a class without this method


@pytest.mark.parametrize("kind", ["Odd", "OddOneByOne"])
def test_odd_values_of_one_lock_do_not_hide_the_others(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    ran("odd")
    every("report", "10m", 4)
    clock.advance("6m")
    done = run("overdue", "--json", store=f"{__name__}:{kind}")
    assert done.exit_code == 1
    states = {job["name"]: job["state"] for job in json.loads(done.stdout)}
    assert states == {"odd": "unknown", "report": "overdue", "": "unknown", "a\nb": "unknown", "x" * 100: "unknown"}
    assert kind == "Odd" or "its outcome is 'odd'" in caplog.text


def test_overdue_in_an_empty_store() -> None:
    done = run("overdue", store=STORE)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "no job is overdue: 0 locks\n")


def test_overdue_in_colour(on_terminal: None) -> None:
    every("report", "10m", 4)
    clock.advance("6m")
    provider.pause("paused", "5h", by="alice")
    shown = run("overdue", store=STORE, NO_COLOR="", FORCE_COLOR="1", TERM="xterm", COLUMNS="200").stdout
    assert f"{RED}overdue" in shown
    assert f"{YELLOW}paused" in shown
