"""Find overdue and stuck jobs from the lock record and the last runs of a name, by the store's clock.

The command line and the page both read the runs with :func:`recent_runs`, so that their results agree.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Literal

from shedlock_py.errors import ConfigurationError, ProviderError, ProviderUnreachable
from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import is_valid_name
from shedlock_py.model.run import Run

RECENT = 10
"""The number of last runs of a name that count."""
NAMES_AT_ONCE = 200
"""The names of one request. Each request has the provider's whole time limit."""
DEFAULT_GRACE = timedelta(minutes=1)
"""How late a job may start."""
FEWEST_GAPS = 3
"""The minimum number of gaps between starts: fewer gaps do not show how often a job runs."""
FEWEST_DURATIONS = 3
"""The minimum number of runs that ended well: fewer runs do not show how long a job runs."""
TOO_LONG = 3
"""A run hangs if it takes so many times the usual duration."""
DOCTOR = "shedlock-doctor"
"""The lock that ``checks`` tries, many times within milliseconds, whenever an operator runs it. It is never due."""
_END = datetime.max.replace(tzinfo=UTC)
"""The last moment of the calendar: another program may have written any time."""

JobState = Literal["on_time", "overdue", "stuck", "running", "paused", "unknown"]
Basis = Literal["next_fire_time", "cadence", "duration"]
TROUBLES: tuple[JobState, ...] = ("stuck", "overdue")


@dataclass(frozen=True)
class Punctuality:
    """Whether the next run of a name has started in time."""

    name: str
    state: JobState
    """``running``: its lock is held, so it is not overdue. ``stuck``: it runs, and should have ended long ago.
    ``unknown``: it has too few runs to say when it is due."""
    last_started: datetime | None
    """When its last run started, by the store's clock, if that is known."""
    due: datetime | None = None
    """When the next run is due, without the grace; for ``duration``, when this run should have ended. It is None if the
    job runs and is not stuck, if it is paused, or if the due time is not known."""
    basis: Basis | None = None
    """The source of ``due``."""


def punctuality(record: LockRecord, runs: Sequence[Run], *, grace: timedelta = DEFAULT_GRACE) -> Punctuality:
    """Return whether the job of ``record`` is overdue or stuck.

    It is due at the ``next_fire_time`` of its last run. Without such a time, it is due after the median gap between the
    starts of ``runs``, if there are at least three gaps. It is overdue ``grace`` later. If the gaps decide, it is
    overdue after half of their median, if that is longer. The doctor's lock is not a job: its due time is unknown.

    A job that runs is stuck ``grace`` after the ``next_fire_time`` of its run. Without such a time, the run is stuck
    ``grace`` after three times the median duration of three or more runs. That does not apply to a name that is held
    nearly all the time, such as an election.

    :param runs: its last runs, newest first. Pauses and demotions do not count.
    """
    runs = [run for run in runs if not (run.is_pause or run.is_demotion)]
    last = runs[0] if runs else None
    started = last.started if last is not None else None
    if record.pause is None and (started is None or started < record.locked_at):
        started = record.locked_at  # by a replica that keeps no history
    if record.is_paused:
        return Punctuality(record.name, "paused", started)
    is_of_record = last is not None and last.locked_by == record.locked_by
    has_ended = record.is_released or (is_of_record and runs[0].outcome is not None)
    if record.is_held and not has_ended:  # with a minimum hold, the lock is still held after the run
        due, basis = _latest_end(runs) if is_of_record and record.name != DOCTOR else (None, None)
        if due is None or record.read_at - due <= grace:
            return Punctuality(record.name, "running", started)
        return Punctuality(record.name, "stuck", started, due, basis)
    if started is None or record.name == DOCTOR:
        return Punctuality(record.name, "unknown", started)
    since = started if record.pause is None else max(started, record.lock_until)  # a pause delays the run
    median = _median((later.started - earlier.started for later, earlier in pairwise(runs)), FEWEST_GAPS)
    if last is not None and last.next_fire_time is not None and last.next_fire_time > since:
        due, basis = last.next_fire_time, "next_fire_time"
    elif median is not None and median <= _END - since:
        due, basis, grace = since + median, "cadence", max(grace, median / 2)
    else:
        return Punctuality(record.name, "unknown", started)
    return Punctuality(record.name, "overdue" if record.read_at - due > grace else "on_time", started, due, basis)


def _latest_end(runs: Sequence[Run]) -> tuple[datetime | None, Basis | None]:
    """Return when the newest of ``runs`` should have ended at the latest, and the basis of this moment."""
    last = runs[0]
    if last.next_fire_time is not None and last.next_fire_time > last.started:
        return last.next_fire_time, "next_fire_time"
    rests = [
        later.started - earlier.ended
        for later, earlier in pairwise(runs)
        if earlier.outcome == "ok" and earlier.ended is not None
    ]
    usual, rest = usual_duration(runs, FEWEST_DURATIONS), _median(rests)
    if usual is None or rest is None or rest < usual / 20:  # an election is held nearly all the time
        return None, None
    longest = TOO_LONG * usual
    return (last.started + longest, "duration") if longest <= _END - last.started else (None, None)


def usual_duration(runs: Iterable[Run], fewest: int = 1) -> timedelta | None:
    """Return the median duration of the runs that ended well, or None if there are fewer than ``fewest``."""
    return _median((run.duration for run in runs if run.outcome == "ok" and run.duration is not None), fewest)


def _median(values: Iterable[timedelta], fewest: int = 1) -> timedelta | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if len(ordered) >= fewest else None


def recent_runs(provider: Any, names: Iterable[str], limit: int = RECENT) -> dict[str, list[Run]]:
    """Read the last ``limit`` runs of ``names`` in few requests. ``provider`` has at least ``runs()``.

    Runs with odd values are left out, with a warning: the odd runs of one name must not hide the runs of other names.

    :raises ConfigurationError: the provider keeps no history.
    """
    valid = [name for name in names if is_valid_name(name)]
    found: dict[str, list[Run]] = {}
    if getattr(provider, "recent_runs", None) is None:
        for name in valid:
            try:
                found[name] = provider.runs(name, limit)
            except ProviderUnreachable:
                raise
            except ProviderError as error:
                logging.getLogger("shedlock_py").warning("%s", error)
        return found
    for start in range(0, max(1, len(valid)), NAMES_AT_ONCE):  # at least one request, which fails without history
        found |= provider.recent_runs(valid[start : start + NAMES_AT_ONCE], limit)
    return found


def stuck_names(provider: Any, records: Iterable[LockRecord]) -> set[str] | None:
    """Return the names of ``records`` that are stuck, with the default grace. Reads the runs of held names.

    Return None if the provider keeps no history, or if its history cannot be read.
    """
    if getattr(provider, "runs", None) is None:
        return None
    held = [record for record in records if record.is_held]
    try:
        runs = recent_runs(provider, [record.name for record in held])
    except ProviderUnreachable:
        raise
    except (ConfigurationError, ProviderError):
        return None
    return {record.name for record in held if punctuality(record, runs.get(record.name, ())).state == "stuck"}
