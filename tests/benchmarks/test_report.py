"""From raw figures to the page: what it says must be what was measured."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import charts, report
from benchmarks.contenders import CONTENDERS, US
from benchmarks.inprocess import DICT
from benchmarks.report import BEGIN, END, filled, tables
from benchmarks.targets import TARGETS, Figure

META: dict[str, Any] = {
    "date": "2026-01-01 00:00 UTC",
    "commit": "abc",
    "processor": "a processor",
    "processors": 2,
    "memory_gb": 8.0,
    "system": "Linux",
    "python": "3.11",
    "fsync_us": 200,
    "load_at_begin": 0.1,
    "load_at_end": 1.0,
    "seconds": 10,
    "servers": {"redis": "Redis 7"},
    "versions": {"redis": "8"},
}


def spread(middle: float) -> dict[str, float]:
    return {"middle": middle, "low": middle - 0.05, "high": middle + 0.05}


def latency(kind: str, ratio: float, **more: Any) -> dict[str, Any]:
    entry = {"kind": kind, "lacks": "", "p50_us": 100 * ratio, "p95_us": 200 * ratio, "skip_p50_us": 40 * ratio}
    cpu = {"client_cpu_us": 80.0, "server_cpu_us": 20.0, "cpu_ratio": spread(ratio)}
    return {**entry, **cpu, "ratio": spread(ratio), "skip_ratio": spread(ratio), **more}


def grown(kind: str, ratio: float, to_floor: float = 1.0) -> dict[str, Any]:
    return {"kind": kind, "acquire_us": 50.0, "ratio": spread(ratio), "floor_ratio": spread(to_floor)}


def called(kind: str, ratio: float, to_dict: float) -> dict[str, Any]:
    return {"kind": kind, "lacks": "", "ns": 1000 * ratio, "ratio": spread(ratio), "dict_ratio": spread(to_dict)}


@pytest.fixture
def results() -> dict[str, Any]:
    share = {"kind": "us", "per_second": 900.0, "share": spread(0.9)}
    return {
        "meta": META,
        "latency": {
            "redis": {
                "floor": latency("floor", 1.0),
                US: latency("us", 1.15),
                "other": latency("peer", 1.31, lacks="fencing token, asyncio"),
                "fenced": latency("peer", 1.4, lacks="asyncio"),
                "quick but no lease": latency("peer", 0.5, has_lease=False),
            },
            "postgres": {"floor": latency("floor", 1.0), US: latency("us", 1.7)},
        },
        "wire": {"redis": {US: {"cycle_round_trips": 2.0, "cycle_bytes": 397.25, "skip_round_trips": 1.0}}},
        "contention": {"postgres": {"floor": {**share, "kind": "floor"}, US: {**share, "share": spread(0.5)}}},
        "cost": {"postgres": {US: {"cycle_wal_bytes": 332.2, "skip_wal_bytes": 0.0}}, "mongodb": {}},
        "clients": {"redis": {"1": {"floor": share, US: share}, "64": {"floor": share, US: share}}},
        "names": {"redis": {"1": {US: grown("us", 1)}}},
        "records": {
            "redis": {
                "10": {US: grown("us", 1, 1.4), "floor": grown("floor", 1), "fencekit": grown("peer", 1, 1.3)},
                "1000000": {US: grown("us", 1.03, 1.42), "floor": grown("floor", 1.01)},
            },
            "sqlite": {"10": {US: grown("us", 1)}, "1000000": {US: grown("us", 1.2), "floor": grown("floor", 9)}},
        },
        "imports": {US: {"kind": "us", "modules": 79, "ms": 60.0, "ms_over_bare": 41.4, "from_bytecode": True}},
        "decorators": {
            "floor": called("floor", 1.0, 2.1),
            DICT: called("floor", 0.48, 1.0),
            f"{US}: decorator": called("us", 3.5, 7.1),
            "huey": called("peer", 0.95, 1.99),
            "py-cachify": called("peer", 5, 10),
        },
        "memory": {"names": 3172.8},
        "life": {"redis": {"keep_alive_per_lease": 3.0, "leader_per_minute": 27.0, "follower_per_minute": 26.0}},
        "absent": [{"name": "sherlock", "group": "redis", "figure": "latency", "reason": "ModuleNotFoundError: a | b"}],
    }


def rows(text: str) -> dict[str, list[str]]:
    """The last row that begins with each label."""
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if "|" in line]
    return {row[0]: row[1:] for row in cells}


def target_rows(results: dict[str, Any]) -> dict[str, list[str]]:
    return rows(tables(results).partition("## Redis")[0])


def test_a_target_is_reached_or_not_and_the_best_of_the_others_has_a_lease(results: dict[str, Any]) -> None:
    found = target_rows(results)
    assert found["Redis: acquire + release"] == ["**1.15** (1.10–1.20)", "≤ 1.2", "yes", "other 1.31", "fenced 1.40"]
    assert found["PostgreSQL, from a URL"] == ["**1.70** (1.65–1.75)", "≤ 1.5", "**no**", "–", "–"]
    assert found["MariaDB, from a URL"][2] == "not measured"
    assert found["`import shedlock_py`, over Python alone"][:3] == ["**41** ms", "≤ 30 ms", "**no**"]
    assert found["modules that it imports"][:3] == ["**79**", "≤ 80", "yes"]


def test_a_share_must_be_great_enough_rather_than_small(results: dict[str, Any]) -> None:
    found = target_rows(results)
    assert found["PostgreSQL: skips per second of 16 processes, share of the floor's"][1:3] == ["≥ 0.6", "**no**"]
    results["contention"]["postgres"][US]["share"] = spread(0.7)
    assert target_rows(results)["PostgreSQL: skips per second of 16 processes, share of the floor's"][2] == "yes"


def test_the_worst_store_counts_for_the_number_of_records(results: dict[str, Any]) -> None:
    found = target_rows(results)["an acquire with 1,000,000 records, to one with 10 (the worst store)"]
    assert found[:3] == ["**1.20** (1.15–1.25) (sqlite, 1,000,000)", "≤ 1.1", "**no**"]


def test_the_decorator_is_held_against_both_readings_of_its_target(results: dict[str, Any]) -> None:
    found = target_rows(results)
    assert found["decorator on the in-memory provider, to the floor (owner and end)"][:4] == [
        "**3.50** (3.45–3.55)",
        "≤ 4",
        "yes",
        "huey 0.95",
    ]
    assert found["the same, to a name in a dict"][:4] == ["**7.10** (7.05–7.15)", "≤ 4", "**no**", "huey 1.99"]
    assert "at 0.95 and 5.00 times the floor, at 1.99 and 10.00 times a name in a dict" in tables(results)


def test_growth_is_that_of_each_and_has_the_floor_beside_it(results: dict[str, Any]) -> None:
    found = rows(tables(results).partition("number of records in the store")[2])
    ours = ["50", "1.00 (0.95–1.05)", "1.03 (0.98–1.08)", "1.40 (1.35–1.45)", "1.42 (1.37–1.47)"]
    assert found[f"Redis: **{US}**"] == ours
    assert found["Redis: floor"][2] == "1.01 (0.96–1.06)"
    assert found["Redis: fencekit"][2] == "–"  # it was not measured with the most


def test_the_page_says_whether_imports_were_compiled(results: dict[str, Any]) -> None:
    assert "From bytecode" in tables(results)
    del results["imports"][US]["from_bytecode"]
    assert "Compiled anew" in tables(results)


def test_operations_of_sqlite_are_not_called_round_trips(results: dict[str, Any]) -> None:
    assert "SQLite has no round trips" not in tables(results)
    results["life"]["sqlite"] = results["life"]["redis"]
    assert "SQLite has no round trips" in tables(results)


def test_nobody_who_is_missing_is_passed_over(results: dict[str, Any]) -> None:
    assert "| sherlock (redis) | latency | ModuleNotFoundError: a \\| b |" in tables(results)


def test_every_figure_has_its_table(results: dict[str, Any]) -> None:
    text = tables(results)
    for heading in ("Redis", "Sixteen processes", "Growth", "Without a store", "Importing", "Memory", "While it runs"):
        assert f"## {heading}" in text, heading
    assert "397.2" in text
    assert "332.2" in text


def test_results_of_nothing_but_the_machine_make_a_page(results: dict[str, Any]) -> None:
    assert "not measured" in tables({"meta": META})


def test_only_what_is_between_the_marks_is_rewritten(results: dict[str, Any]) -> None:
    page = filled(f"before\n{BEGIN}\nold\n{END}\nafter\n", results)
    assert page.startswith(f"before\n{BEGIN}\n\n## What was to be reached")
    assert page.endswith(f"{END}\nafter\n")
    assert "old" not in page
    assert filled(page, results) == page
    with pytest.raises(ValueError, match="no marks"):
        filled("a page", results)


def test_targets_say_which_way_they_are_meant() -> None:
    for target in TARGETS:
        low, high = Figure(target.limit * 0.9), Figure(target.limit * 1.1)
        assert target.is_reached(high) is target.at_least
        assert target.is_reached(low) is not target.at_least


# Charts


def test_each_chart_is_for_light_and_dark_says_what_it_shows_and_lies_within_its_frame(results: dict[str, Any]) -> None:
    drawn = charts.draw(results)
    assert set(drawn) == {
        *("ratio-redis.svg", "ratio-postgres.svg", "skips.svg"),
        *("clients.svg", "names.svg", "records.svg"),
    }
    lines = [("plain", [(10.0, 0.01), (10_000.0, 60.0)]), ("leader", [(10.0, 0.01), (10_000.0, 0.02)])]
    drawn["scaling.svg"] = charts.scaling([("Redis", lines)], {60.0: "the next tick"}, "a title")
    for name, text in drawn.items():
        svg = ElementTree.fromstring(text)
        width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
        parts = {part.tag.rpartition("}")[2]: part.text or "" for part in svg}
        assert parts["title"], name
        assert len(parts["desc"]) > 50, name
        assert "prefers-color-scheme: dark" in text, name
        for part in svg.iter("{http://www.w3.org/2000/svg}text"):
            assert 0 < float(part.attrib["x"]) < width, (name, part.text)
            assert 0 < float(part.attrib["y"]) < height, (name, part.text)


def test_a_bar_that_would_dwarf_the_others_is_cut_off(results: dict[str, Any]) -> None:
    results["latency"]["redis"]["slow"] = latency("peer", 40.0)
    svg = ElementTree.fromstring(charts.draw(results)["ratio-redis.svg"])
    bars = [
        float(part.attrib["width"])
        for part in svg.iter("{http://www.w3.org/2000/svg}rect")
        if part.attrib.get("height") == "15"
    ]
    assert max(bars) <= charts.WIDTH - charts.LEFT - charts.RIGHT
    assert min(bars) > 20


@pytest.mark.parametrize(
    ("highest", "steps"), [(0.9, [0, 0.25, 0.5, 0.75, 1]), (14_900, [0, 5000, 10_000, 15_000]), (4, [0, 1, 2, 3, 4])]
)
def test_axes_have_round_numbers(highest: float, steps: list[float]) -> None:
    assert charts.nice(highest) == steps


def test_great_numbers_are_short() -> None:
    assert [charts.short(value) for value in (1, 10_000, 100_000, 2_500_000)] == ["1", "10,000", "100 k", "2.5 M"]


def test_labels_are_kept_apart() -> None:
    ends = [100.0, 101.0, 40.0]
    shifted = [end + shift for end, shift in zip(ends, charts.apart(ends), strict=True)]
    assert shifted == [100, 114, 40]


# What is committed


def last() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report.LAST.read_text())
    return found


def test_the_page_says_what_the_committed_run_measured() -> None:
    assert filled(report.PAGE.read_text(), last()) == report.PAGE.read_text()


def test_the_committed_charts_are_those_of_the_committed_run() -> None:
    drawn = charts.draw(last())
    committed = {path.name: path.read_text() for path in report.CHARTS.iterdir() if path.name != "scaling.svg"}
    assert drawn == committed


def test_the_committed_run_lacks_no_floor_and_none_of_ours() -> None:
    found = last()["latency"]
    missing = [
        (one.group, one.name) for one in CONTENDERS if one.kind != "peer" and one.name not in found.get(one.group, {})
    ]
    assert missing == []


def test_each_chart_is_shown_on_a_page() -> None:
    pages = "".join(path.read_text() for path in (report.PAGE, Path(report.PAGE).with_name("scaling.md")))
    for path in report.CHARTS.glob("*.svg"):
        assert f"(benchmarks/{path.name})" in pages, path.name
