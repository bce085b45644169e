"""The benchmark runs for each figure of a store, and for figures without a store. Its times mean nothing here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import charts, inprocess
from benchmarks.__main__ import FIGURES, OF_STORES
from benchmarks.contenders import US
from benchmarks.history import WITH, WITHOUT
from benchmarks.machine import ROOT
from benchmarks.targets import TARGETS, Figure
from tests.support.availability import private_server
from tests.support.redis import RedisServer


def run(only: list[str], out: Path) -> tuple[dict[str, Any], str]:
    command = [sys.executable, "-m", "benchmarks", "--smoke", "--only", ",".join(only), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


@pytest.mark.slow("runs the benchmark")
@pytest.mark.timeout(300)  # 18 s on a quiet machine
@pytest.mark.parametrize(
    "store", ["redis", pytest.param("sqlite", marks=pytest.mark.matrix("the same figures on a file"))]
)
def test_every_figure_of_a_store(store: str, tmp_path: Path) -> None:
    if store == "redis":
        with private_server("redis", RedisServer):
            pass  # skip if Redis is not installed
    figures = [figure for figure in OF_STORES if store == "redis" or figure not in ("wire", "cost")]
    page = (ROOT / "docs" / "results" / "benchmarks.md").read_text()
    results, tables = run([store, *figures], tmp_path / "results.json")
    assert (ROOT / "docs" / "results" / "benchmarks.md").read_text() == page, (
        "a part of a run leaves the documentation alone"
    )
    # Peers may be missing; the floor and this library must be there.
    assert [one for one in results["absent"] if one["name"].startswith(("floor", US, "all"))] == []
    for group in (store, f"{store} async"):
        assert results["latency"][group]["floor"]["ratio"]["middle"] == 1
        assert results["latency"][group][US]["skip_p50_us"] > 0
    assert results["contention"][store][US]["per_second"] > 0
    assert set(results["clients"][store]) == {"1", "2"}
    for figure in ("names", "records"):
        assert all({"floor", US} <= set(found) for found in results[figure][store].values())
    assert set(results["history"][store]) == {WITH, WITHOUT}
    assert results["life"][store]["leader_per_minute"] > 0
    if store == "redis":
        assert results["wire"]["redis"][US]["cycle_round_trips"] == 2
        assert results["cost"]["redis"][US]["skip_commands"] > 0
    assert "## Targets" in tables
    assert all(text.startswith("<svg") for text in charts.draw(results).values())


@pytest.mark.slow("runs the benchmark")
@pytest.mark.timeout(300)  # 43 s on a quiet machine
def test_what_needs_no_store(tmp_path: Path) -> None:
    results, tables = run([figure for figure in FIGURES if figure not in OF_STORES], tmp_path / "results.json")
    assert results["decorators"][f"{US}: decorator"]["ns"] > results["decorators"]["floor"]["ns"]
    assert results["imports"][US]["ms_over_bare"] > 0
    assert all(kilobytes > 0 for kilobytes in results["memory"].values())
    assert "a guarded call in memory" in tables


def test_modules_that_are_imported() -> None:
    """Modules of the package, without Python's modules that most programs load."""
    needed = "concurrent.futures, dataclasses, fractions, inspect, json, logging, pkgutil, random, signal, socket"
    pythons = inprocess.modules(f"import {needed}")
    assert inprocess.modules("import shedlock_py") - pythons <= 50


def test_targets_have_a_direction() -> None:
    for target in TARGETS:
        low, high = Figure(target.limit * 0.9), Figure(target.limit * 1.1)
        assert target.is_reached(high) is target.at_least
        assert target.is_reached(low) is not target.at_least
