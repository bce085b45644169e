"""Run history: the last runs of each lock name, if the provider was opened with ``history``.

A run begins with the grant of a lease and ends with its release, by the store's clock. A store writes the start with
the grant and the end with the release. It does not write that a run vanished: the reader finds that the run has a
successor, but no end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import get_args

from shedlock_py.model.lease import Lease, RunOutcome
from shedlock_py.model.record import Pause, holder_of, recoveries_of
from shedlock_py.model.request import DEMOTED

LONGEST_ERROR = 200
"""The characters of an error that history keeps."""
MOST_RUNS = 1000
"""The maximum of runs of one name that a store can keep."""
_REPORTED = set(get_args(RunOutcome)) - {"vanished"}
_logger = logging.getLogger("shedlock_py")


@dataclass(frozen=True)
class Run:
    """One run of a lock name, or one term of a leader. Times are aware UTC, of the store's clock."""

    name: str
    fencing_token: int
    locked_by: str
    """Holder and claim id."""
    started: datetime
    """When the lease was granted."""
    ended: datetime | None = None
    """When the lease was released; for a run that vanished, when its successor started."""
    outcome: RunOutcome | None = None
    """How it ended. It is None while no end was reported: the run goes on, or its holder died and no run has
    followed."""
    error: str | None = None
    """Type and first line of the task's exception."""
    fire_time: datetime | None = None
    """The scheduled time, if there was any."""
    next_fire_time: datetime | None = None
    """When the next run was to start: from ``expected_every``, or from its scheduler."""

    @property
    def holder(self) -> str:
        """The holder, for people to read."""
        return holder_of(self.locked_by)

    @property
    def recoveries(self) -> int:
        """How often its fire time was recovered, including this run; 0 if this run began on time."""
        return recoveries_of(self.locked_by)

    @property
    def is_pause(self) -> bool:
        """Whether it is not a run: an operator had paused the lock."""
        return Pause.from_holder(self.holder) is not None

    @property
    def is_demotion(self) -> bool:
        """Whether it is not a term of a leader: an operator had demoted the leader, and no node led for this time."""
        return DEMOTED.fullmatch(self.holder) is not None

    @property
    def duration(self) -> timedelta | None:
        """From start to end; None before the end, and for a run that vanished, because nobody saw its end."""
        if self.ended is None or self.outcome == "vanished":
            return None
        return max(timedelta(0), self.ended - self.started)  # the store's clock may have been set back


def newest_first(runs: Iterable[Run], limit: int) -> list[Run]:
    """Return the newest ``limit`` of ``runs``. A run without an end has vanished if it has a successor.

    A pause or a demotion has not vanished: it ends by itself, at the latest when its successor starts.
    """
    ordered = sorted(runs, key=lambda run: run.fencing_token, reverse=True)
    for number, run in enumerate(ordered):
        if number and run.outcome is None:
            outcome: RunOutcome = "ok" if run.is_pause or run.is_demotion else "vanished"
            ordered[number] = replace(run, outcome=outcome, ended=ordered[number - 1].started)
    return ordered[:limit]


def describe_error(error: BaseException) -> str:
    """Return type and first line of ``error`` for history: at most 200 printable characters."""
    first = _first_line(error)
    return _shown(f"{type(error).__name__}: {first}" if first else type(error).__name__)


def error_of(lease: Lease) -> str | None:
    """Return ``lease.error`` as a store can keep it. A caller that releases a lease itself may have set any value."""
    error: object = lease.error
    if isinstance(error, BaseException):
        return describe_error(error)
    return None if error is None else _shown(_first_line(error)) or None


def outcome_of(lease: Lease) -> RunOutcome:
    """Return ``lease.outcome`` if it is valid. A caller that releases a lease itself may have set any value."""
    given: object = lease.outcome
    if isinstance(given, str) and given in _REPORTED:
        return lease.outcome
    outcome: RunOutcome = "ok" if lease.error is None else "failed"
    _logger.warning("lock %r: %r is not an outcome of a run, so history has %r", lease.name, lease.outcome, outcome)
    return outcome


def _first_line(error: object) -> str:
    try:
        return str(error).strip().partition("\n")[0]
    except Exception:  # an exception of the application may fail to describe itself
        return ""


def _shown(text: str) -> str:
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return shown if len(shown) <= LONGEST_ERROR else f"{shown[: LONGEST_ERROR - 1]}…"
