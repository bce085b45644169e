"""The docs page runs; the dashboard and the alerts use metrics and labels that a scrape really has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from shedlock_py import InMemoryLockProvider, LeadershipStarted, LockRequest, ProviderFailed, TaskFinished
from shedlock_py.integrations.prometheus import OverdueCollector, PausedCollector, PrometheusListener
from shedlock_py.testing import FakeClock
from tests.observability.scraping import Scrape, serving
from tests.support.scripts import PROJECT

PAGES = PROJECT / "docs" / "observability"
PAGE = (PAGES / "index.md").read_text()
DASHBOARD: dict[str, Any] = json.loads((PAGES / "grafana-dashboard.json").read_text())
ALERTS: list[dict[str, Any]] = yaml.safe_load((PAGES / "alerts.yml").read_text())["groups"][0]["rules"]

ADDED_BY_PROMETHEUS = {"instance", "job"}


@pytest.fixture(scope="module")
def scrape() -> Scrape:
    """A scrape of a listener that has received every event with its own metric."""
    registry = CollectorRegistry()
    listener = PrometheusListener(registry)
    lease = InMemoryLockProvider().acquire(LockRequest("job", "1m"))
    assert lease
    listener(TaskFinished("job", lease, timedelta(0), "succeeded", None))
    listener(LeadershipStarted("feed", "me", 1))
    for operation in ("record", "take_over"):
        listener(ProviderFailed("feed", operation, OSError()))
    store = InMemoryLockProvider()
    assert store.pause("job", "1m").is_paused
    PausedCollector(store, registry)
    clock = FakeClock()
    late = InMemoryLockProvider(clock=clock, history=3)
    assert late.acquire(LockRequest("job", "1m", next_fire_time=datetime.now(UTC) + timedelta(seconds=1)))
    clock.advance("1h")
    OverdueCollector(late, registry)
    with serving(registry) as server:
        return server.scrape()


# Expressions


def problems(expression: str, scrape: Scrape, legend: str = "") -> Iterator[str]:
    """Yield everything that a PromQL expression uses and the scrape lacks."""
    known = scrape.labels()
    selectors = re.findall(r"\b(shedlock_\w+)(?:\{([^}]*)\})?", expression)
    if not selectors:
        yield "no metric of the library"
    for name, matchers in selectors:
        if name not in known:
            yield f"there is no {name}"
            continue
        for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers):
            if label not in known[name] | ADDED_BY_PROMETHEUS:
                yield f"{name} has no label {label}"
            elif label in ("outcome", "reason", "operation"):
                values = value.split("|") if "~" in operator else [value]
                yield from (f"{name} has no {label} {v}" for v in values if v not in scrape.values(name, label))
    there = set.intersection(*(known.get(name, set()) for name, _ in selectors)) if selectors else set()
    grouped = [
        label.strip() for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in labels.split(",")
    ]
    yield from (f"no label {label} to group by" for label in grouped if label not in there | ADDED_BY_PROMETHEUS)
    if expression.count("(") != expression.count(")") or expression.count("{") != expression.count("}"):
        yield "unbalanced brackets"
    shown = re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", legend)
    yield from (f"{label} is shown, and not in the result" for label in shown if label not in grouped)


def targets() -> list[tuple[str, str, str]]:
    return [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]


@pytest.mark.parametrize(("title", "expression", "legend"), targets(), ids=lambda text: text[:30])
def test_the_expressions_of_the_dashboard(title: str, expression: str, legend: str, scrape: Scrape) -> None:
    has_legend = "{{" in legend
    assert list(problems(expression, scrape, legend if has_legend else "")) == []


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_the_expressions_of_the_alerts(rule: dict[str, Any], scrape: Scrape) -> None:
    assert list(problems(rule["expr"], scrape, " ".join(rule["annotations"].values()))) == []
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert re.fullmatch(r"\d+[mh]", rule.get("for", "0m"))
    assert f"`{rule['alert']}`" in PAGE


@pytest.mark.parametrize(
    ("expression", "legend", "problem"),
    [
        ("sum(shedlock_acquisition_total)", "", "there is no shedlock_acquisition_total"),
        ("sum by (lock) (shedlock_leader)", "", "no label lock to group by"),
        ('shedlock_running{election="x"}', "", "shedlock_running has no label election"),
        ('shedlock_tasks_total{outcome="success"}', "", "shedlock_tasks_total has no outcome success"),
        ('shedlock_acquisitions_total{outcome=~"held|hold"}', "", "shedlock_acquisitions_total has no outcome hold"),
        ("sum by (lock) (shedlock_running)", "{{ lok }}", "lok is shown, and not in the result"),
        ("sum by (lock) (shedlock_running)", "{{ $labels.reason }}", "reason is shown, and not in the result"),
        ("sum(shedlock_running", "", "unbalanced brackets"),
        ("up == 0", "", "no metric of the library"),
    ],
)
def test_the_check_finds_mistakes(expression: str, legend: str, problem: str, scrape: Scrape) -> None:
    assert problem in list(problems(expression, scrape, legend))


# The dashboard as a document


def test_the_variables_of_the_dashboard(scrape: Scrape) -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "lock", "instance"]
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    for name in ("lock", "instance"):
        metric, label = re.findall(r"^label_values\((\w+), (\w+)\)$", variables[name]["definition"])[0]
        assert label == name
        assert label in scrape.labels()[metric] | ADDED_BY_PROMETHEUS
        assert variables[name]["datasource"]["uid"] == "${datasource}"
    used = {word for _, expression, _ in targets() for word in re.findall(r"\$(\w+)", expression)}
    assert used <= {*variables, "__range", "__rate_interval"}


def test_every_panel_has_a_place_and_the_chosen_data_source() -> None:
    taken: set[tuple[int, int]] = set()
    assert len(DASHBOARD["panels"]) > 5
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["description"]
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"]) >= 12


def test_every_metric_is_on_the_dashboard_and_on_the_page(scrape: Scrape) -> None:
    families = {re.sub("_(bucket|count|sum)$", "", name) for name in scrape.labels()}
    shown = {
        re.sub("_bucket$", "", name)
        for _, expression, _ in targets()
        for name in re.findall(r"shedlock_\w+", expression)
    }
    assert families == shown
    table = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(shedlock_\w+)` \| \w+ \| ([^|]*) \|", PAGE, re.MULTILINE)
    }
    labels = {
        family: set().union(*(scrape.labels()[name] - {"le"} for name in scrape.labels() if name.startswith(family)))
        for family in families
    }
    assert table == labels


def test_the_values_on_the_page_are_those_of_a_scrape(scrape: Scrape) -> None:
    for name, label in (
        ("shedlock_acquisitions_total", "outcome"),
        ("shedlock_tasks_total", "outcome"),
        ("shedlock_leases_lost_total", "reason"),
        ("shedlock_runs_missed_total", "reason"),
        ("shedlock_provider_failures_total", "operation"),
    ):
        (meaning,) = re.findall(rf"^\| `{name}` .* \| ([^|]*) \|$", PAGE, re.MULTILINE)
        assert scrape.values(name, label) <= set(re.findall(r"`(\w+)`", meaning)), name
