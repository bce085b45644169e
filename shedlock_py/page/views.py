"""The views: each address reads from the store and picks a template. Sync, for worker threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from shedlock_py.election.demotion import Demotion, leader_of
from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.events import OperatorAction
from shedlock_py.guard.spec import declared_lock_at_most_for, is_declared_kept_alive
from shedlock_py.model.advice import advice
from shedlock_py.model.overdue import RECENT, TROUBLES
from shedlock_py.model.record import LockRecord
from shedlock_py.model.run import MOST_RUNS, Run
from shedlock_py.operators import changes, display
from shedlock_py.operators.checks import Check, checks_of, read_only_checks
from shedlock_py.page.durations import durations
from shedlock_py.page.jobs import COLUMNS, FROM_RUNS, MOST_WITH_RUNS, ROWS, SHOWN, SHOWN_FROM_RUNS, Job, Query
from shedlock_py.page.lanes import LAST_DAY, LAST_WEEK, chart, fitting_window
from shedlock_py.page.reading import Store
from shedlock_py.provider import can

MOST_ROWS_OF_RUNS = 200
TERMS = 10
WINDOWS = {"": "automatic", "day": f"last {LAST_DAY.words}", "week": f"last {LAST_WEEK.words}"}
"""Names of the timeline's windows, by their key in an address."""


@dataclass(frozen=True)
class Shown:
    """A reply: a template and its values, or the address of another view."""

    template: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    location: str = ""


@dataclass(frozen=True)
class Views:
    """The views of one page.

    :ivar elections: the lock names of elections. A record looks the same for a leader and for a running job.
    """

    allow_changes: bool
    elections: Sequence[str] = ()

    def jobs(self, store: Store, values: Mapping[str, str]) -> Shown:
        """Show all jobs. Read runs for the rows on this page, and for all jobs only if runs decide about the rows."""
        query = Query.parse(values)
        all_records = store.records()
        records = [record for record in all_records if not is_election(record, self.elections)]
        found = [record for record in records if query.matches(record)]
        jobs, has_history = [Job(record, None) for record in found], False
        is_all = query.needs_all_runs or len(found) <= MOST_WITH_RUNS
        if is_all:
            jobs, has_history = store.jobs(found)
        selected = query.selected(jobs)
        pages = max(1, -(-len(selected) // ROWS))
        page = min(query.page, pages)
        visible = selected[(page - 1) * ROWS : page * ROWS]
        if not is_all:
            visible, has_history = store.jobs([job.record for job in visible])
        return Shown(
            "jobs.html",
            {
                "title": "Jobs",
                "query": query,
                "columns": {key: title for key, title in COLUMNS.items() if has_history or key not in FROM_RUNS},
                "shows": SHOWN if has_history else [show for show in SHOWN if show not in SHOWN_FROM_RUNS],
                "rows": [job.row() for job in visible],
                "total": len(records),
                "number_of_elections": len(all_records) - len(records),
                "number": len(selected),
                "first": (page - 1) * ROWS + 1,
                "page": page,
                "pages": pages,
                "has_all_runs": is_all,
                "counts": counts_of(found, jobs if is_all and has_history else None),
                "no_history": "" if has_history else store.why_no_history,
            },
        )

    def job(self, store: Store, values: Mapping[str, str]) -> Shown:
        name = values.get("name", "")
        record = store.provider.record(name)
        if record is None:
            return problem(404, f"The store has no lock {display.printable(name)!r}.")
        runs = store.runs(name, MOST_RUNS)
        window = values.get("window", "")
        return Shown(
            "job.html",
            {
                **job_values(record, runs, window),
                "title": display.printable(name),
                "windows": WINDOWS,
                "window": window if window in WINDOWS else "",
                "done": values.get("done", ""),
                "can": self._can(store, record),
                "no_history": store.why_no_history if runs is None else "",
            },
        )

    def _can(self, store: Store, record: LockRecord) -> list[tuple[str, str]]:
        """Return the actions that an operator can take on a lock, with the texts of their buttons."""
        if not self.allow_changes:
            return []
        # The lease of a leader must not be freed, even after its demotion: another node could lead while it is trusted.
        is_led = self._is_led(record)
        is_of_leader = is_led or Demotion.from_record(record) is not None
        able: list[tuple[str, str, bool]] = [
            ("pause", "Pause again…" if record.is_paused else "Pause…", can(store.provider, "pause") and not is_led),
            ("resume", "Resume…", record.is_paused and can(store.provider, "resume")),
            ("force_release", "Free by force…", record.is_held and not (record.is_paused or is_of_leader)),
            ("demote", "Demote…", is_led),
        ]
        return [(action, words) for action, words, is_able in able if is_able]

    def _is_led(self, record: LockRecord) -> bool:
        return record.name in self.elections and leader_of(record) is not None

    def leaders(self, store: Store, values: Mapping[str, str]) -> Shown:
        records = {record.name: record for record in store.records()}
        demoted = [name for name, record in records.items() if Demotion.from_record(record) is not None]
        elections: list[dict[str, Any]] = []
        for name in sorted({*self.elections, *demoted}):
            record = records.get(name)
            if record is None:
                absent = {"name": display.printable(name), "leader": None, "why": display.why_no_leader(None)}
                elections.append({**absent, "can": [], "charts": [], "runs": []})
                continue
            elections.append({**leader_values(record, store.runs(name, MOST_RUNS)), "can": self._can(store, record)})
        return Shown("leaders.html", {"title": "Leaders", "elections": elections})

    def store(self, store: Store, values: Mapping[str, str]) -> Shown:
        return Shown("store.html", {**store_values(store), "title": "Store", "tried": False})

    def try_store(self, store: Store) -> Shown:
        """Run the checks of ``shedlock doctor``. They write a lock record of their own."""
        return Shown("store.html", {**store_values(store, checks_of(store.provider)), "title": "Store", "tried": True})

    def confirm(
        self, store: Store, action: OperatorAction, values: Mapping[str, str], why_not: str = "", status: int = 200
    ) -> Shown:
        if not self.allow_changes:
            return problem(403, "This page is read-only: it was started without --allow-changes.")
        name = values.get("name", "")
        try:
            wanted = changes.confirmation(store.provider, action, name, values)
            changes.refuse(store.provider, action, name, self.elections)
        except changes.NotDone as error:
            return problem(409, why_not or str(error), name)
        except ConfigurationError as error:
            return problem(400, why_not or str(error), name)
        shown = {
            "title": wanted.title,
            "action": action,
            "name": name,
            "confirmation": wanted,
            "why_not": why_not,
        }
        return Shown("change.html", shown, status)

    def change(self, store: Store, action: OperatorAction, values: Mapping[str, str], by: str) -> Shown:
        name = values.get("name", "")
        try:
            # Refuse first: the form has shown the consequence of an earlier state.
            changes.refuse(store.provider, action, name, self.elections)
            done = changes.carry_out(store.provider, action, name, values, by)
        except changes.NotDone as error:
            return self.confirm(store, action, values, str(error), 409)
        except ConfigurationError as error:
            return self.confirm(store, action, values, str(error), 400)
        if action == "prune":  # no other page shows the result of a prune
            return Shown("done.html", {"title": "Pruned", "text": f"Deleted: {done}."})
        return Shown(location=action)


def problem(status: int, text: str, name: str = "", title: str = "Not possible") -> Shown:
    return Shown("problem.html", {"title": title, "text": text, "name": name}, status)


def store_problem(error: ProviderError) -> Shown:
    """Show a failure of the store, with a status that does not blame the page."""
    title = "The store does not reply" if isinstance(error, ProviderUnreachable) else "The store replies with an error"
    return problem(503, display.printable(display.one_line(error)), title=title)


def store_does_not_reply(seconds: float) -> Shown:
    return problem(503, f"No reply came within {seconds:g} seconds.", title="The store does not reply")


def is_election(record: LockRecord, elections: Collection[str]) -> bool:
    return record.name in elections or Demotion.from_record(record) is not None


def counts_of(records: Sequence[LockRecord], jobs: Sequence[Job] | None) -> list[tuple[int, str, bool]]:
    """Return the number of jobs per badge, and whether the badge is bad. Count runs only if all runs were read."""
    counts = [
        (sum(record.is_held and not record.is_paused for record in records), "held", False),
        (sum(record.is_paused for record in records), "paused", False),
    ]
    if jobs is not None and all(job.runs is not None for job in jobs):
        badges = Counter(badge for job in jobs for badge in (job.trouble, job.outcome) if badge)
        counts += [(badges[badge], badge, True) for badge in (*TROUBLES, *display.BAD) if badge in badges]
    return counts


def job_values(record: LockRecord, runs: Sequence[Run] | None, window: str = "") -> dict[str, Any]:
    """Return the template's values of one job: its present state, its timeline, its runs.

    :param window: a key of :data:`WINDOWS`. Any other text means the first window.
    """
    job = Job(record, None if runs is None else runs[:RECENT])
    shown = {"day": LAST_DAY, "week": LAST_WEEK}.get(window) or fitting_window(runs or (), record)
    lock_at_most_for = declared_lock_at_most_for(record.name)
    return {
        "record": record,
        "job": job.row(),
        "name": record.name,
        "token": display.token_of(record),
        "fire_time": display.local_iso(display.fire_time_of(record)),
        "future_fire_time": tuple(map(display.printable, display.future_fire_time(record) or ())),
        "pause": display.pause_in_words(record) if record.is_paused else "",
        "charts": [] if runs is None else [chart(runs, record, shown)],
        "durations": durations(runs or (), record, lock_at_most_for),
        "advice": None if is_declared_kept_alive(record.name) else advice(runs or (), lock_at_most_for),
        "runs": [run_row(run, record) for run in (runs or ())[:MOST_ROWS_OF_RUNS]],
        "runs_left_out": max(0, len(runs or ()) - MOST_ROWS_OF_RUNS),
    }


def run_row(run: Run, record: LockRecord) -> dict[str, Any]:
    duration = display.duration_of(run, record)
    return {
        "started": display.local_time(run.started, record.read_at),
        "started_iso": display.local_iso(run.started),
        "took": display.NOTHING if duration is None else display.in_words(duration),
        "outcome": display.outcome_of(run, record),
        "holder": display.printable(run.holder),
        "token": run.fencing_token,
        "fire_time": display.local_time(run.fire_time, record.read_at),
        "error": display.printable(run.error) if run.error else "",
        "is_bad": run.outcome in display.BAD,
    }


def leader_values(record: LockRecord, runs: Sequence[Run] | None) -> dict[str, Any]:
    leading = leader_of(record)
    return {
        "key": record.name,
        "name": display.printable(record.name),
        "leader": display.printable(leading.holder) if leading else None,
        "term": display.token_of(record),
        "since": f"{display.in_words(display.age(record))} ago",
        "locked_at": display.local_iso(record.locked_at),
        "until": f"in {display.in_words(record.remaining)}",
        "why": display.why_no_leader(record),
        "charts": [chart(runs, record, LAST_WEEK)] if runs else [],
        "runs": [run_row(run, record) for run in (runs or ())[:TERMS]],
    }


def store_values(store: Store, checks: Any = None) -> dict[str, Any]:
    found: list[Check] = list(read_only_checks(store.provider) if checks is None else checks)
    has_history = found[0].status == "failed" or store.has_history
    return {
        "shown": store.shown,
        "checks": [
            {
                "check": check.check,
                "status": check.status,
                "message": display.printable(check.message),
                "hint": display.printable(check.hint or ""),
            }
            for check in found
        ],
        "no_history": "" if has_history else store.why_no_history,
    }


def clock_now(seconds_ago: float = 0.0) -> str:
    """Return this machine's time ``seconds_ago``, with its time zone."""
    return f"{(datetime.now(UTC) - timedelta(seconds=seconds_ago)).astimezone():%Y-%m-%d %H:%M:%S %Z}"
