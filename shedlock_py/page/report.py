"""The page as one self-contained file. It contains no script and loads nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from shedlock_py.model.run import MOST_RUNS
from shedlock_py.page.jobs import COLUMNS, FROM_RUNS, Job, Query
from shedlock_py.page.reading import Store
from shedlock_py.page.rendering import render, static_text
from shedlock_py.page.views import (
    clock_now,
    counts_of,
    is_election,
    job_values,
    leader_values,
    store_values,
)
from shedlock_py.provider import LockProvider
from shedlock_py.runtime.versions import __version__

MOST_DETAILS = 100
"""Jobs with timelines and a table of runs: first stuck, overdue, failed, paused or held jobs, then the last runs."""


def report(provider: LockProvider, elections: Sequence[str] = ()) -> str:
    """Return the page of ``provider`` as HTML, to keep or send.

    :raises ProviderError: the store failed.
    """
    store = Store(provider)
    all_records = {record.name: record for record in store.records()}
    records = [record for record in all_records.values() if not is_election(record, elections)]
    found, has_history = store.jobs(records)
    jobs = Query().selected(found)
    numbers = {job.record.name: number for number, job in enumerate(jobs)}
    detailed = sorted(jobs, key=_interest)[: MOST_DETAILS if has_history else 0]
    leaders = [record for record in all_records.values() if is_election(record, elections)]
    style = static_text("page.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return render(
        "report.html",
        style=style,
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        columns={key: title for key, title in COLUMNS.items() if has_history or key not in FROM_RUNS},
        rows=[job.row() for job in jobs],
        counts=counts_of(records, jobs if has_history else None),
        numbers=numbers,
        details=[job_values(job.record, store.runs(job.record.name, MOST_RUNS)) for job in detailed],
        elections=[leader_values(record, store.runs(record.name, MOST_RUNS)) for record in leaders],
        detailed={job.record.name for job in detailed},
        left_out=len(jobs) - len(detailed) if has_history else 0,
        no_history="" if has_history else store.why_no_history,
        now=clock_now(),
        version=__version__,
        **{key: value for key, value in store_values(store).items() if key != "no_history"},
    )


def _interest(job: Job) -> tuple[bool, bool, bool, float]:
    """Return a sort key: jobs that need attention come first."""
    newest = -job.record.locked_at.timestamp()
    return not job.trouble, not job.has_failed, not job.record.is_held, newest
