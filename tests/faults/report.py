"""Print figures to the terminal, and write the tables in docs/results/faults.md."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.checker import Report

PAGE = Path(__file__).parents[2] / "docs" / "results" / "faults.md"
BEGIN = "<!-- begin: written by `make faults` -->"
END = "<!-- end: written by `make faults` -->"


@dataclass(frozen=True)
class Row:
    """The result of one scenario on one store, sync and async together."""

    number: int
    scenario: str
    store: str
    report: Report
    servers: frozenset[tuple[str, str]] = frozenset()
    """Product and version of each server that the process has used so far."""


@dataclass(frozen=True)
class Control:
    """The result of a mutant: its fault, and the rule that found it (None: not found)."""

    fault: str
    scenario: str
    caught_by: str | None
    trials: int
    trouble: str = ""


def percentile(values: Sequence[float], part: float) -> float | None:
    """Return the smallest value that is not exceeded by at least ``part`` of the values."""
    ordered = sorted(values)
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)] if ordered else None


def milliseconds(seconds: float) -> str:
    return "0" if seconds <= 0 else f"{seconds * 1000:.1f}"


def takeover(report: Report, part: float) -> str:
    seconds = percentile(report.takeovers, part)
    return "–" if seconds is None else f"{seconds:.2f}"


def line(scenario: str, store: str, kind: str, report: Report) -> str:
    verdict = f"{len(report.findings)} VIOLATIONS" if report.findings else "ERROR" if report.errors else "ok  "
    return (
        f"{verdict} {scenario[:34]:34} {store:9}{kind:6}{report.trials:4} trials  "
        f"overlap {milliseconds(report.worst_overlap):>5} ms  "
        f"take-over {takeover(report, 0.5):>5} / {takeover(report, 0.99):>5} s"
    )


def _violations(report: Report) -> str:
    return f"{len(report.findings)}{', not carried out' if report.errors else ''}"


def tables(rows: Sequence[Row], controls: Sequence[Control], *, seed: int, seconds: float) -> str:
    counts = sum((row.report.counts for row in rows), start=Report().counts)
    trials = sum(row.report.trials for row in rows)
    servers = sorted(frozenset().union(*(row.servers for row in rows)))
    versions = ", ".join(" ".join(server) for server in [("Python", platform.python_version()), *servers])
    lines = [
        f"Run of {datetime.now(UTC):%Y-%m-%d}: {seconds / 60:.0f} minutes, seed {seed}, {versions}. "
        f"{trials} trials, {counts['acquire granted']} leases granted, "
        f"{counts['acquire skipped']} attempts skipped, {counts['killed']} processes killed, "
        f"{counts['write refused']} stale writes refused.",
        "",
        "| scenario | store | trials | violations | worst overlap, ms | take-over p50, s | p99, s |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        report = row.report
        lines.append(
            f"| {row.number}. {row.scenario} | {row.store} | {report.trials} | {_violations(report)} "
            f"| {milliseconds(report.worst_overlap)} | {takeover(report, 0.5)} | {takeover(report, 0.99)} |"
        )
    if any(row.scenario.endswith("*") for row in rows):
        lines += ["", "\\* Outside the limits of the promises. The overlap is measured and is not a violation."]
    notes = [f"- {row.scenario}, {row.store}: {note}" for row in rows for note in row.report.notes]
    if notes:
        lines += ["", *notes]
    lines += ["", "| mutant | in | found by the rule | trials |", "|---|---|---|--:|"]
    for control in controls:
        lines.append(
            f"| {control.fault} | {control.scenario} | {control.caught_by or '**not found**'} | {control.trials} |"
        )
    return "\n".join(lines)


def write_page(text: str, page: Path = PAGE, begin: str = BEGIN, end: str = END) -> None:
    """Put ``text`` between two lines of ``page``."""
    before, found, rest = page.read_text().partition(begin)
    _, found_too, after = rest.partition(end)
    if not found or not found_too:
        raise ValueError(f"{page} has no place for the tables: {begin} … {end}")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
