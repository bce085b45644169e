"""The list of all jobs: rows, search, sort and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from operator import itemgetter
from typing import Any
from urllib.parse import urlencode

from shedlock_py.model.overdue import RECENT, TROUBLES, Punctuality, punctuality, usual_duration
from shedlock_py.model.record import LockRecord
from shedlock_py.model.run import Run
from shedlock_py.operators import display

ROWS = 200
"""Rows on one page of the list."""
MOST_WITH_RUNS = 1000
"""Each refresh reads the runs of so many jobs, so that trouble comes first. Runs of more jobs are read on request."""
LONGEST_SEARCH = 100
COLUMNS = {
    "name": "Lock",
    "state": "State",
    "holder": "Holder",
    "since": "Last start",
    "until": "Until",
    "outcome": "Last run",
    "took": "Took",
    "usual": "Usually",
    "next": "Next",
}
"""The columns for sorting the list, with their titles."""
FROM_RUNS = ("outcome", "took", "usual", "next")
TROUBLE = "trouble"
SHOWN_FROM_RUNS = (TROUBLE, *TROUBLES, *display.BAD)
SHOWN = ("all", "held", "paused", "free", "done", *SHOWN_FROM_RUNS)


@dataclass(frozen=True)
class Job:
    """One lock name with its last runs. ``runs`` is None without run history."""

    record: LockRecord
    runs: Sequence[Run] | None

    @cached_property
    def state(self) -> str:
        return display.state_of(self.record)

    @cached_property
    def holder(self) -> str:
        return display.holder_of(self.record)

    @cached_property
    def _own_runs(self) -> list[Run]:
        return [run for run in self.runs or () if not run.is_pause]

    @cached_property
    def outcome(self) -> str:
        """The outcome of the last run, or "" if it is not known."""
        return display.outcome_of(self._own_runs[0], self.record) if self._own_runs else ""

    @cached_property
    def took(self) -> timedelta | None:
        return display.duration_of(self._own_runs[0], self.record) if self._own_runs else None

    @cached_property
    def usual(self) -> timedelta | None:
        """The median duration of the runs that ended well."""
        return usual_duration(self._own_runs)

    @cached_property
    def punctuality(self) -> Punctuality | None:
        return None if self.runs is None else punctuality(self.record, self.runs[:RECENT])

    @property
    def trouble(self) -> str:
        """ "stuck", "overdue" or ""."""
        state = "" if self.punctuality is None else self.punctuality.state
        return state if state in TROUBLES else ""

    @property
    def has_failed(self) -> bool:
        return self.outcome in display.BAD

    @property
    def rank(self) -> int:
        """The sort key: first trouble, then bad ends."""
        return 0 if self.trouble else 1 if self.has_failed else 2

    @cached_property
    def next_in(self) -> timedelta | None:
        """The time until the next run is due. Negative if the job is late or hangs, None if nobody knows."""
        due = self.punctuality and self.punctuality.due
        return due - self.record.read_at if due else None

    def row(self) -> dict[str, Any]:
        """Return the values of the row for the template."""
        record = self.record
        return {
            "key": record.name,
            "name": display.printable(record.name) or '""',  # another program may have written it
            "state": self.state,
            "holder": self.holder,
            "since": f"{display.in_words(display.age(record))} ago",
            "is_start": display.last_start(record) is not None,
            "locked_at": display.local_iso(record.locked_at),
            "until": f"in {display.in_words(record.remaining)}" if record.is_held else display.NOTHING,
            "lock_until": display.local_iso(record.lock_until),
            "outcome": self.outcome,
            "took": display.NOTHING if self.took is None else display.in_words(self.took),
            "usual": display.NOTHING if self.usual is None else display.in_words(self.usual),
            "next": self.next_in_words(),
            "trouble": self.trouble,
        }

    def next_in_words(self) -> str:
        if self.next_in is None:
            return display.NOTHING
        if self.next_in < timedelta(0):
            return f"{display.in_words(-self.next_in)} late"
        return f"in {display.in_words(self.next_in)}"


_STATES = ("paused", "demoted", "held", "free", "done")
_SORT_KEYS: dict[str, Callable[[Job], Any]] = {
    "": lambda job: (job.rank, job.record.name),
    "name": lambda job: job.record.name,
    "state": lambda job: _STATES.index(job.state),
    "holder": lambda job: job.holder,
    "since": lambda job: job.record.locked_at,
    "until": lambda job: job.record.remaining if job.record.is_held else None,
    "outcome": lambda job: (not job.has_failed, job.outcome) if job.outcome else None,
    "took": lambda job: job.took,
    "usual": lambda job: job.usual,
    "next": lambda job: job.next_in,
}
"""A key returns None if the job lacks this value."""


@dataclass(frozen=True)
class Query:
    """A request for the list, parsed from its address. Invalid values are ignored."""

    search: str = ""
    show: str = "all"
    sort: str = ""
    """The column, or "" for trouble first, then names."""
    is_reversed: bool = False
    page: int = 1

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Query:
        sort = values.get("sort", "")
        page = values.get("page", "")
        show = values.get("show", "")
        return cls(
            values.get("q", "").strip()[:LONGEST_SEARCH],
            show if show in SHOWN else "all",
            sort.removeprefix("-") if sort.removeprefix("-") in COLUMNS else "",
            sort.startswith("-") and sort[1:] in COLUMNS,
            int(page) if page.isascii() and page.isdecimal() and 0 < len(page) < 6 else 1,
        )

    @property
    def needs_all_runs(self) -> bool:
        return self.sort in FROM_RUNS or self.show in SHOWN_FROM_RUNS

    def address(self, **changes: Any) -> str:
        """Return the query string of this list with ``changes``."""
        values = {
            "q": self.search,
            "show": "" if self.show == "all" else self.show,
            "sort": f"{'-' if self.is_reversed else ''}{self.sort}",
            **changes,
        }
        values = {key: value for key, value in values.items() if value}
        return f"?{urlencode(values)}" if values else "?"

    def address_sorted_by(self, column: str) -> str:
        """Return the query string for the list sorted by ``column``. Reverse it if ``column`` is the present order."""
        is_reversed = column == self.sort and not self.is_reversed
        return self.address(sort=f"{'-' if is_reversed else ''}{column}")

    def matches(self, record: LockRecord) -> bool:
        text = self.search.casefold()
        return text in record.name.casefold() or text in record.holder.casefold()

    def shows(self, job: Job) -> bool:
        match self.show:
            case "held":
                return job.state in ("held", "demoted")
            case "paused" | "free" | "done":
                return job.state == self.show
            case "all":
                return True
            case "trouble":
                return bool(job.trouble) or job.has_failed
        return self.show in (job.trouble, job.outcome)

    def selected(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the jobs to show, in order. Jobs without a value come last. ``jobs`` are sorted by name."""
        key = _SORT_KEYS[self.sort]
        keyed = [(key(job), job) for job in jobs if self.shows(job)]
        with_value = [each for each in keyed if each[0] is not None]
        with_value.sort(key=itemgetter(0), reverse=self.is_reversed)
        return [job for _, job in with_value] + [job for value, job in keyed if value is None]
