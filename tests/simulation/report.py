"""Write docs/results/simulation.md."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.simulation.campaign import Limit
from tests.simulation.progress import plural
from tests.simulation.schedule import KINDS
from tests.simulation.tally import Tally
from tests.simulation.timeline import clock
from tests.simulation.trials import Detection

PAGE = Path(__file__).parents[2] / "docs" / "results" / "simulation.md"
BEGIN = "<!-- begin: written by `make simulate` -->"
END = "<!-- end: written by `make simulate` -->"

_STORES = {
    "memory": "the in-memory store",
    "sql": "SQLite, in a real SQLite",
    "redis": "Redis, its scripts in a real Lua 5.1",
    "mongodb": "MongoDB, its operators interpreted",
    "cas": "compare-and-swap stores (etcd, S3, Kubernetes)",
    "dynamodb": "DynamoDB, its expressions interpreted",
}


@dataclass(frozen=True)
class Run:
    """The results of one run of ``make simulate``."""

    seed: int
    seconds: float
    tally: Tally
    limits: Sequence[Limit]
    detections: Sequence[Detection]


def section(run: Run) -> str:
    """Return the section in Markdown."""
    tally = run.tally
    lines = [
        f"Run of {datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, one simulation after another in "
        f"{run.seconds / 60:.0f} minutes: **{tally.hours:,.0f} simulated hours**, {tally.events:,} events, "
        f"{tally.seeds:,} seeds from {run.seed}, **{plural(len(tally.found), 'violation')}**.",
        "",
        "| schedules | simulated hours |",
        "|---|--:|",
        *(f"| {kind}: {KINDS[kind].text} | {hours:,.0f} |" for kind, hours in tally.by_kind.items()),
        "",
        "| programs and commands of | simulated hours |",
        "|---|--:|",
        *(f"| {_STORES[store]} | {hours:,.0f} |" for store, hours in tally.by_store.items()),
        "",
        "Events in these hours:",
        "",
        "| event | number |",
        "|---|--:|",
        *(f"| {event} | {number:,} |" for event, number in sorted(tally.counts.items())),
        "",
        "Documented limits. These schedules go beyond the promises, and the checker must find a violation:",
        "",
        "| limit | schedules | seeds with a violation | rules |",
        "|---|---|--:|---|",
        *(
            f"| {KINDS[limit.kind].limit} | {limit.kind} | {limit.broken} of {limit.seeds} | {', '.join(limit.rules)} |"
            for limit in run.limits
        ),
        "",
        *_mutants(run.detections),
    ]
    return "\n".join(lines)


def _mutants(detections: Sequence[Detection]) -> list[str]:
    found = sum(detection.is_found for detection in detections)
    return [
        f"Mutants: {found} of {len(detections)} were found within one simulated hour of one of the seeds.",
        "",
        "| mutant | in | found after (median) | at worst | by the rule |",
        "|---|---|--:|--:|---|",
        *(
            f"| {detection.mutant.wrong} | {detection.mutant.part} | {_time(detection.median)} "
            f"| {_time(detection.worst)} | {', '.join(detection.rules)} |"
            for detection in detections
        ),
    ]


def _time(seconds: float) -> str:
    return "not in an hour" if seconds == float("inf") else clock(seconds)
