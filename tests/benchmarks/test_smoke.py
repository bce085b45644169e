"""The whole harness once, as a user starts it, for a moment."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import FIGURES, OF_STORES, main
from benchmarks.contenders import US
from benchmarks.inprocess import DICT
from benchmarks.machine import ROOT
from benchmarks.plan import Plan

MUST_NOT_MISS = ("floor", US, "all")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.parametrize("store", ["redis", "sqlite"])
def test_a_run_measures_all_that_belongs_to_a_store(store: str, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    figures = [figure for figure in OF_STORES if store == "redis" or figure not in ("wire", "cost")]
    done = run("--smoke", "--only", ",".join([store, *figures]), "--out", str(out), "--seed", "1")
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert [one for one in results["absent"] if one["name"].startswith(MUST_NOT_MISS)] == []
    for group in (store, f"{store} async"):
        assert results["latency"][group]["floor"]["ratio"]["middle"] == 1
        assert results["latency"][group][US]["p50_us"] > 0
        assert len(results["latency"][group][US]["rounds_us"]) == 2
    assert results["contention"][store][US]["per_second"] > 0
    assert set(results["clients"][store]) == {"1", "2"}
    for figure, fewest, most in (("names", "1", "5"), ("records", "10", "100")):
        grown = results[figure][store]
        assert [set(grown[size]) >= {"floor", US} for size in (fewest, most)] == [True, True]
        assert grown[most][US]["acquire_us"] > 0
        assert grown[fewest][US]["ratio"]["middle"] == 1
        assert grown[most]["floor"]["floor_ratio"]["middle"] == 1
    assert results["life"][store]["keep_alive_per_lease"] > 0
    assert set(results["life"][store]) == {"keep_alive_per_lease", "leader_per_minute", "follower_per_minute"}
    assert "## What was to be reached" in done.stdout
    assert f"{store}: latency" in done.stderr
    if store == "redis":
        assert results["wire"]["redis"][US]["cycle_round_trips"] == 2


def test_the_first_skip_is_measured_where_the_next_ones_are_others(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    done = run("--smoke", "--only", "postgres,latency", "--out", str(out))
    assert done.returncode == 0, done.stderr
    for group in ("postgres", "postgres async"):
        found = json.loads(out.read_text())["latency"][group]
        assert found[US]["first_skip_p50_us"] > 0
        assert "first_skip_p50_us" not in found["floor"]
    assert done.stdout.count("The first skip of a lock") == 2


def test_decorators_are_measured_without_any_store(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    done = run("--smoke", "--only", "decorators", "--out", str(out))
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["decorators"]
    assert (found["floor"]["ratio"]["middle"], found[DICT]["dict_ratio"]["middle"]) == (1, 1)
    assert found[f"{US}: decorator"]["ns"] > found["floor"]["ns"] > found[DICT]["ns"]


def test_a_word_that_is_neither_store_nor_figure_is_refused() -> None:
    with pytest.raises(SystemExit, match="unknown oracle"):
        main(["--only", "redis,oracle"])


def test_the_help_names_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert [figure for figure in FIGURES if figure not in text] == []


def test_what_fails_is_reported_and_the_rest_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise TimeoutError("a disk that is full\nand more")

    plan = Plan.smoke()
    with plan.reported("redis", "records"):
        fail()
    assert [(one.group, one.figure, one.reason) for one in plan.absent] == [
        ("redis", "records", "TimeoutError: a disk that is full")
    ]
    assert "redis: records failed" in capsys.readouterr().err


def test_a_part_of_a_run_leaves_the_documentation_alone(tmp_path: Path) -> None:
    page = ROOT / "docs" / "benchmarks.md"
    before = page.read_text()
    assert run("--smoke", "--only", "decorators", "--out", str(tmp_path / "r.json")).returncode == 0
    assert page.read_text() == before
