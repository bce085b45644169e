"""The figures, and the place in the documentation that they are written to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults import __main__ as command
from tests.faults import runner
from tests.faults.checker import Finding, Report
from tests.faults.registry import all_scenarios
from tests.faults.report import BEGIN, END, PAGE, Control, Row, line, percentile, tables, write_page
from tests.support.stores import ALL

REPORT = Report(
    trials=7,
    findings=[Finding("overlap", "job", "two", 1.0)],
    worst_overlap=0.0123,
    takeovers=[0.7, 0.9, 0.8],
    counts=Counter({"killed": 3, "acquire granted": 12}),
    notes=["the plain rule: 6 of 10"],
)


def test_percentiles() -> None:
    values = [number / 100 for number in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (0.5, 0.99, 1.0)
    assert (percentile([3.0], 0.5), percentile([3.0], 0.99), percentile([], 0.5)) == (3.0, 3.0, None)


def test_the_tables() -> None:
    controls = [Control("client clock", "2 s fast", "overlap", 1), Control("nothing", "peace", None, 5)]
    text = tables([Row(1, "kill -9", "redis", REPORT)], controls, seed=7, seconds=90)
    assert "| 1. kill -9 | redis | 7 | 1 | 12.3 | 0.80 | 0.90 |" in text
    assert "seed 7" in text
    assert "12 leases granted, 0 attempts skipped, 3 processes killed" in text
    assert "- kill -9, redis: the plain rule: 6 of 10" in text
    assert "| client clock | 2 s fast | overlap | 1 |" in text
    assert "| nothing | peace | **not found** | 5 |" in text


def test_a_line_fits_the_terminal() -> None:
    text = line("10. the longest name that a scenario may have", "postgres", "async", REPORT)
    assert text.startswith("1 VIOLATIONS")
    assert len(text) <= 120


def test_the_page_is_rewritten_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "reliability.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_page("new", page)
        assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    page.write_text("no markers")
    with pytest.raises(ValueError, match="no place"):
        write_page("new", page)


def test_the_real_page_has_a_place_for_them() -> None:
    text = PAGE.read_text()
    assert 0 < text.index(BEGIN) < text.index(END)


def test_every_scenario_names_stores_that_there_are() -> None:
    scenarios = all_scenarios()
    assert {scenario.number for scenario in scenarios} >= {1, 2, 4, 5, 6}
    assert all(set(scenario.stores) <= set(ALL) for scenario in scenarios)


def test_no_such_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--only", "earthquake"]) == 2
    assert "kill -9 of holders: sqlite, postgres" in capsys.readouterr().out


def test_a_broken_promise_is_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (killing,) = [scenario for scenario in all_scenarios() if scenario.name == "kill -9 of holders"]
    outcome = Report(trials=1)
    fake = type(killing)(**{**killing.__dict__, "run": lambda store, budget, seed: outcome})
    for module in (command, runner):
        monkeypatch.setattr(module, "all_scenarios", lambda: [fake])
    arguments = ["--jobs", "1", "--only", "1", "--store", "sqlite", "--seed", "3", "--minutes", "0"]
    assert command.main(arguments) == 0
    outcome.findings.append(Finding("overlap", "job", "two at once", 1.0))
    assert command.main(arguments) == 1
    assert "overlap: two at once" in capsys.readouterr().out
