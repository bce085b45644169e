"""Run history: what a store keeps of the last runs of each lock name, where its provider was opened with ``history``.

A run begins with the grant of a lease and ends with its release; its times are those of the store's clock. A store
writes the start with the grant and the end with the release. It writes nothing else: a run that vanished is recognised
when the runs are read, because it has no end and a successor.
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
"""Characters of an error that history keeps."""
MOST_RUNS = 1000
"""The most runs of one name that a store can keep."""
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
    """When it was released; of a run that vanished, when its successor started. None: it has no end yet."""
    outcome: RunOutcome | None = None
    """None: no end was reported. The run goes on, or its holder died and nobody has run since."""
    error: str | None = None
    """Type and first line of what the task raised."""
    fire_time: datetime | None = None
    """The scheduled time, if the run had one."""
    next_fire_time: datetime | None = None
    """When the next run was to start: from ``expected_every``, or from its scheduler."""

    @property
    def holder(self) -> str:
        """Who ran it, for people to read."""
        return holder_of(self.locked_by)

    @property
    def recoveries(self) -> int:
        """How often its fire time was recovered, with this run; 0: this run began on time."""
        return recoveries_of(self.locked_by)

    @property
    def is_pause(self) -> bool:
        """Whether it is no run: an operator had paused the lock."""
        return Pause.from_holder(self.holder) is not None

    @property
    def is_demotion(self) -> bool:
        """Whether it is no term of a leader: an operator had demoted one, and nobody led for this time."""
        return DEMOTED.fullmatch(self.holder) is not None

    @property
    def duration(self) -> timedelta | None:
        """From start to end; None while there is no end, and for a run that vanished: nobody knows how long it ran."""
        if self.ended is None or self.outcome == "vanished":
            return None
        return max(timedelta(0), self.ended - self.started)  # the store's clock may have been set back


def newest_first(runs: Iterable[Run], limit: int) -> list[Run]:
    """The newest ``limit`` of ``runs``. Those without an end that have a successor have vanished.

    Not a pause or a demotion: they end by themselves, and at the latest when their successor starts.
    """
    ordered = sorted(runs, key=lambda run: run.fencing_token, reverse=True)
    for number, run in enumerate(ordered):
        if number and run.outcome is None:
            outcome: RunOutcome = "ok" if run.is_pause or run.is_demotion else "vanished"
            ordered[number] = replace(run, outcome=outcome, ended=ordered[number - 1].started)
    return ordered[:limit]


def describe_error(error: BaseException) -> str:
    """Type and first line of ``error``, as history keeps them: at most 200 printable characters."""
    first = _first_line(error)
    return _shown(f"{type(error).__name__}: {first}" if first else type(error).__name__)


def error_of(lease: Lease) -> str | None:
    """``lease.error`` as a store can keep it: code that releases by itself may have put anything there."""
    error: object = lease.error
    if isinstance(error, BaseException):
        return describe_error(error)
    return None if error is None else _shown(_first_line(error)) or None


def outcome_of(lease: Lease) -> RunOutcome:
    """``lease.outcome`` if it is one: code that releases by itself may have put anything there."""
    given: object = lease.outcome
    if isinstance(given, str) and given in _REPORTED:
        return lease.outcome
    outcome: RunOutcome = "ok" if lease.error is None else "failed"
    _logger.warning("lock %r: %r is no outcome of a run, %r is kept", lease.name, lease.outcome, outcome)
    return outcome


def _first_line(error: object) -> str:
    try:
        return str(error).strip().partition("\n")[0]
    except Exception:  # an exception of the application may be unable to describe itself
        return ""


def _shown(text: str) -> str:
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return shown if len(shown) <= LONGEST_ERROR else f"{shown[: LONGEST_ERROR - 1]}…"
