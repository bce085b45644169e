"""Tests of the suite's tools: histories that survive their process, figures, the exit status."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shedlock_py import InMemoryLockProvider, LockRequest, ProviderUnreachable
from tests.faults import __main__ as command
from tests.faults import runner
from tests.faults.checker import Finding, Report
from tests.faults.history import NEVER, History, Logbook, Reader, monotonic
from tests.faults.recording import RecordedProvider
from tests.faults.registry import Scenario, all_scenarios
from tests.faults.report import BEGIN, END, PAGE, Control, Row, tables, write_page
from tests.faults.worker import FencedLog
from tests.support.doubles import FaultyProvider
from tests.support.stores import ALL


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history"


@pytest.fixture
def logbook(path: Path) -> Iterator[Logbook]:
    with closing(Logbook(path, "w")) as logbook:
        yield logbook


def read(path: Path) -> History:
    return Reader(path).update().history()


# Histories


def test_a_history_has_each_operation_of_a_lease(path: Path, logbook: Logbook) -> None:
    before = monotonic()
    provider = RecordedProvider(InMemoryLockProvider(), logbook, keep_alive=True)
    lease = provider.acquire(LockRequest("job", "1m", "1s"))
    assert lease is not None
    assert provider.acquire(LockRequest("job", "2m")) is None
    trusted_until = lease.trusted_until
    assert provider.extend(lease, "2m") is lease
    longer = lease.trusted_until
    assert provider.release(lease)
    assert not provider.release(lease)
    acquire, skip, extend, release, again = read(path).operations
    assert (acquire.worker, acquire.kind, acquire.name, acquire.outcome) == ("w", "acquire", "job", "granted")
    assert (acquire.at_most, acquire.at_least, acquire.keep_alive) == (60, 1, True)
    assert (acquire.claim, acquire.token, acquire.trusted_until) == (lease.claim_id, lease.fencing_token, trusted_until)
    assert (skip.outcome, skip.claim, skip.token) == ("skipped", "", None)
    assert (extend.outcome, extend.at_most) == ("done", 120)
    assert (extend.trusted_before, extend.trusted_until) == (trusted_until, longer)
    assert (release.outcome, release.trusted_before, release.trusted_until) == ("done", longer, NEVER)
    assert again.outcome == "lost"
    moments = [moment for o in (acquire, skip, extend, release) for moment in (o.started, o.end)]
    moments = [before, *moments, monotonic()]
    assert moments == sorted(moments)


def test_a_history_has_errors_and_the_trust_that_stays(path: Path, logbook: Logbook) -> None:
    store = FaultyProvider()
    provider = RecordedProvider(store, logbook)
    lease = provider.acquire(LockRequest("job", "1m"))
    assert lease is not None
    store.fail("extend")
    with pytest.raises(ProviderUnreachable):
        provider.extend(lease, "30s")
    extend = read(path).operations[-1]
    assert (extend.outcome, extend.error) == ("error", "ProviderUnreachable: down")
    assert extend.trusted_before == extend.trusted_until == lease.trusted_until


def test_a_lease_that_a_guard_has_undone_is_held_until_the_next_attempt(path: Path, logbook: Logbook) -> None:
    """The undo is not in the history. The grant came too late for the task."""
    store = InMemoryLockProvider()
    provider, reader = RecordedProvider(store, logbook, keep_alive=True), Reader(path)
    lease = provider.acquire(LockRequest("job", "1m"))
    assert lease is not None
    assert reader.update().holding["w"].name == "job"
    assert provider.undo(lease)
    assert store.acquire(LockRequest("job", "1m"))
    assert provider.acquire(LockRequest("job", "1m")) is None
    assert not reader.update().holding


def test_an_older_lease_that_still_writes_is_not_the_last_to_write(path: Path, logbook: Logbook) -> None:
    """A careless worker writes until the resource has met a higher token."""
    reader = Reader(path)
    for token, outcome, highest in ((7, "done", 7), (6, "done", 7), (9, "refused", 7), (8, "done", 8)):
        with logbook.operation("write", "job", token=token) as entry:
            entry.outcome = outcome
        assert reader.update().last_writes == {"job": highest}


def test_half_a_line_is_read_when_it_is_whole(path: Path, logbook: Logbook) -> None:
    logbook.mark("killed", "v", 1.0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    reader = Reader(path)
    assert reader.update().history().marks == ()
    path.write_bytes(whole)
    (mark,) = reader.update().history().marks
    assert (mark.kind, mark.worker, mark.before) == ("killed", "v", 1.0)


def test_an_operation_that_outlasts_its_history_writes_nothing_into_another(path: Path, tmp_path: Path) -> None:
    """A thread may still wait for the store when its trial ends. The next trial's file then has the same descriptor."""
    first, second = Logbook(path, "w"), tmp_path / "second"
    late = first.operation("acquire", "job")
    late.__enter__()
    first.close()
    with closing(Logbook(second, "w")), pytest.raises(ValueError, match="closed"):
        late.__exit__(None, None, None)
    assert second.read_bytes() == b""
    (operation,) = read(path).operations
    assert operation.ended is None


def test_the_fenced_log_refuses_older_tokens(tmp_path: Path) -> None:
    log = FencedLog(tmp_path / "log")
    token = 1_700_000_000_000_000
    assert [log.write("job", token + more) for more in (1, 1, 0, 5, 4, 6)] == [True, True, False, True, False, True]
    assert log.write("another", 3)
    assert not FencedLog(tmp_path / "log").write("job", token)


# Figures

REPORT = Report(
    trials=7,
    findings=[Finding("overlap", "job", "two", 1.0)],
    worst_overlap=0.0123,
    takeovers=[0.7, 0.9, 0.8],
    counts=Counter({"killed": 3, "acquire granted": 12}),
    notes=["the plain rule: 6 of 10"],
)


def test_the_tables_have_figures_and_controls() -> None:
    controls = [Control("client clock", "2 s fast", "overlap", 1), Control("nothing", "peace", None, 5)]
    text = tables([Row(1, "kill -9", "redis", REPORT, frozenset({("Redis", "8.0.2")}))], controls, seed=7, seconds=90)
    assert "| 1. kill -9 | redis | 7 | 1 | 12.3 | 0.80 | 0.90 |" in text
    assert f"seed 7, Python {platform.python_version()}, Redis 8.0.2. 7 trials, " in text
    assert "12 leases granted, 0 attempts skipped, 3 processes killed" in text
    assert "- kill -9, redis: the plain rule: 6 of 10" in text
    assert "| client clock | 2 s fast | overlap | 1 |" in text
    assert "| nothing | peace | **not found** | 5 |" in text


def test_the_page_is_rewritten_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "faults.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_page("new", page)
        assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    text = PAGE.read_text()
    assert 0 < text.index(BEGIN) < text.index(END)


def test_every_scenario_names_stores_that_there_are() -> None:
    scenarios = all_scenarios()
    assert {scenario.number for scenario in scenarios} >= set(range(1, 11))
    assert all(set(scenario.stores) <= set(ALL) for scenario in scenarios)


RunFake = Callable[[Callable[[], Report]], int]


@pytest.fixture
def run_fake(monkeypatch: pytest.MonkeyPatch) -> RunFake:
    """Run a scenario that calls ``act``, on SQLite, sync and async. Return the exit status."""

    def run_fake(act: Callable[[], Report]) -> int:
        fake = Scenario(1, "fake", ("sqlite",), lambda store, budget, seed: act(), ("sync", "async"), 1.0, 1)
        for module in (command, runner):
            monkeypatch.setattr(module, "all_scenarios", lambda: [fake])
        return command.main(["--jobs", "1", "--only", "1", "--store", "sqlite", "--seed", "3", "--minutes", "0"])

    return run_fake


def test_an_unknown_scenario_is_refused_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--only", "earthquake"]) == 2
    assert "kill -9 of holders: sqlite, postgres" in capsys.readouterr().out


def test_a_broken_promise_is_the_exit_status(run_fake: RunFake, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Report(trials=1)
    assert run_fake(lambda: outcome) == 0
    outcome.findings.append(Finding("overlap", "job", "two at once", 1.0))
    assert run_fake(lambda: outcome) == 1
    assert "overlap: two at once" in capsys.readouterr().out


def test_a_scenario_that_cannot_be_carried_out_is_an_error_and_no_violation(
    run_fake: RunFake, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacks_a_store() -> Report:
        raise KeyError("stdsqlite")

    assert run_fake(lacks_a_store) == 1
    text = capsys.readouterr().out
    assert "not carried out: KeyError: 'stdsqlite'" in text
    assert "| 1. fake | sqlite | 0 | 0, not carried out |" in text
    assert "\n0 violations, 2 errors in " in text
    assert "VIOLATIONS" not in text


def test_what_a_scenario_waits_for_in_vain_is_a_violation(
    run_fake: RunFake, capsys: pytest.CaptureFixture[str]
) -> None:
    def waits_in_vain() -> Report:
        raise AssertionError("no leader")

    assert run_fake(waits_in_vain) == 1
    assert "\n2 violations, 0 errors in " in capsys.readouterr().out
