"""Lock records and runs as text for people: what the command line and the page share.

Others may have written anything to the store: nothing in a name, a holder or an error may control a terminal.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from shlex import quote

from shedlock_py.model.record import ONCE, LockRecord
from shedlock_py.model.run import Run
from shedlock_py.model.slots import LONGEST_LEAD
from shedlock_py.model.text import in_words as in_words
from shedlock_py.model.text import one_line as one_line
from shedlock_py.model.text import printable as printable

NOTHING = "-"
BAD = ("failed", "lost", "vanished", "unfinished")
"""The outcomes, as :func:`outcome_of` has them, of runs that did not end well."""


def counted(number: int, what: str) -> str:
    """``number`` of ``what``: 1 lock record, 2 lock records."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def last_start(record: LockRecord) -> datetime | None:
    """The start of its last run, as far as the record says. After a pause or a demotion, nothing."""
    return None if record.pause is not None or demoted_leader(record) is not None else record.locked_at


def age(record: LockRecord) -> timedelta:
    """How long ago it was acquired, by the store's clock."""
    return max(record.read_at - record.locked_at, timedelta(0))


def in_local_zone(moment: datetime) -> datetime:
    """``moment`` in this machine's time zone; unchanged at the ends of time, where that zone has no such moment."""
    try:
        return moment.astimezone()
    except (OverflowError, OSError):  # OSError: Windows, before 1970 and after 3000
        return moment


def local_iso(moment: datetime | None) -> str:
    return NOTHING if moment is None else in_local_zone(moment).isoformat(timespec="seconds")


def utc(moment: datetime | None) -> str | None:
    """ISO 8601, always with microseconds, so that it sorts as text."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds") if moment is not None else None


def demoted_leader(record: LockRecord) -> str | None:
    """The leader that was demoted, if a demotion keeps this record from other leaders."""
    from shedlock_py.election.demotion import Demotion  # late: `shedlock run` shows a holder only with -v

    demotion = Demotion.from_record(record)
    return None if demotion is None else printable(demotion.leader)


def holder_of(record: LockRecord) -> str:
    demoted = demoted_leader(record)
    if record.pause is not None:
        return f"({printable(record.holder)})"
    return printable(record.holder) if demoted is None else f"(demoted: {demoted})"


def pause_in_words(record: LockRecord, until: str | None = None) -> str:
    """Until when, by whom and why the lock of ``record`` is paused.

    :param until: the end of the pause, in another form than ISO 8601.
    """
    pause = record.pause
    assert pause is not None
    why = f": {printable(pause.reason)}" if pause.reason else ""
    return f"paused until {until or local_iso(record.lock_until)} by {printable(pause.by)}{why}"


def running_in_words(record: LockRecord) -> str:
    since = f"since {local_iso(record.locked_at)} ({in_words(age(record))})"
    return f"{holder_of(record)} has it {since}, for another {in_words(record.remaining)} unless extended"


def state_of(record: LockRecord) -> str:
    if not record.is_held:
        return "done" if record.is_done else "free"
    if record.is_paused:
        return "paused"
    return "held" if demoted_leader(record) is None else "demoted"


def fire_time_of(record: LockRecord) -> datetime | None:
    """The newest fire time. None for a key of ``run_once``: it has ONCE, and after a failure a time just before."""
    fire_time = record.last_fire_time
    return None if fire_time is None or fire_time <= ONCE else fire_time


def claim_id(record: LockRecord) -> str | None:
    """None in a record of ShedLock for Java, which has a holder only."""
    return record.locked_by[len(record.holder) + 1 :] or None


def token_of(record: LockRecord) -> str:
    return NOTHING if record.fencing_token is None else str(record.fencing_token)


def future_fire_time(record: LockRecord) -> tuple[str, str] | None:
    """The fault and the cure, if the last fire time is in the future of the store's clock; else None."""
    fire_time = record.last_fire_time
    if fire_time is None or fire_time <= record.read_at + LONGEST_LEAD:
        return None
    fault = (
        f"lock {record.name!r}: its last fire time, {local_iso(fire_time)}, is {in_words(fire_time - record.read_at)} "
        f"in the future: a replica's clock was wrong, and runs that are due before it are skipped"
    )
    return fault, f"forget it with: shedlock release {quote(record.name)} --forget-fire-time"


def local_time(moment: datetime | None, now: datetime) -> str:
    """The time of day in this machine's zone, with the date if that is not the day of ``now``."""
    if moment is None:
        return NOTHING
    local = in_local_zone(moment)
    return f"{local:%H:%M:%S}" if local.date() == now.astimezone().date() else f"{local:%Y-%m-%d %H:%M}"


# Runs


def is_running(run: Run, record: LockRecord) -> bool:
    return run.outcome is None and record.is_held and run.locked_by == record.locked_by


def outcome_of(run: Run, record: LockRecord) -> str:
    if run.is_pause:
        return "paused"
    if run.is_demotion:
        return "demoted"
    return run.outcome or ("running" if is_running(run, record) else "unfinished")


def duration_of(run: Run, record: LockRecord) -> timedelta | None:
    return record.read_at - run.started if is_running(run, record) else run.duration
