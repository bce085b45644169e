"""Lock records and runs as text for people, for the command line and the page.

Other programs may have written anything to the store: escape names, holders and errors, so that they cannot control a
terminal.
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
"""Results of :func:`outcome_of` for runs that did not end well."""


def counted(number: int, what: str) -> str:
    """Return the number and the noun: 1 lock record, 2 lock records."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def last_start(record: LockRecord) -> datetime | None:
    """Return the start of the last run, if no pause or demotion has overwritten it."""
    return None if record.pause is not None or demoted_leader(record) is not None else record.locked_at


def age(record: LockRecord) -> timedelta:
    """Return the time since the last acquisition, by the store's clock."""
    return max(record.read_at - record.locked_at, timedelta(0))


def in_local_zone(moment: datetime) -> datetime:
    """Return ``moment`` in this machine's time zone. Leave moments unchanged that this zone cannot express."""
    try:
        return moment.astimezone()
    except (OverflowError, OSError):  # OSError: Windows, before 1970 and after 3000
        return moment


def local_iso(moment: datetime | None) -> str:
    return NOTHING if moment is None else in_local_zone(moment).isoformat(timespec="seconds")


def utc(moment: datetime | None) -> str | None:
    """Return ``moment`` as ISO 8601 in UTC, always with microseconds, so that it sorts as text."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds") if moment is not None else None


def demoted_leader(record: LockRecord) -> str | None:
    """Return the demoted leader, if a demotion keeps this record from other leaders."""
    from shedlock_py.election.demotion import Demotion  # late: `shedlock run` shows a holder only with -v

    demotion = Demotion.from_record(record)
    return None if demotion is None else printable(demotion.leader)


def holder_of(record: LockRecord) -> str:
    demoted = demoted_leader(record)
    if record.pause is not None:
        return f"({printable(record.holder)})"
    return printable(record.holder) if demoted is None else f"(demoted: {demoted})"


def pause_in_words(record: LockRecord, until: str | None = None) -> str:
    """Return until when, by whom and why the lock of ``record`` is paused.

    :param until: the end of the pause as text. Default: ISO 8601.
    """
    pause = record.pause
    assert pause is not None
    why = f": {printable(pause.reason)}" if pause.reason else ""
    return f"paused until {until or local_iso(record.lock_until)} by {printable(pause.by)}{why}"


def running_in_words(record: LockRecord) -> str:
    since = f"since {local_iso(record.locked_at)} ({in_words(age(record))})"
    return f"{holder_of(record)} has it {since}, for another {in_words(record.remaining)} unless extended"


def why_no_leader(record: LockRecord | None) -> str:
    """Return why nobody leads in the election of ``record``."""
    if record is None:
        return "nobody ever led"
    if record.pause is not None:
        return f"it is {pause_in_words(record)}" if record.is_held else f"it was {pause_in_words(record)}"
    if record.is_held and (demoted := demoted_leader(record)) is not None:
        return f"{demoted} was demoted; the next election is in {in_words(record.remaining)}"
    return f"{holder_of(record)} led until {local_iso(record.lock_until)}"


def state_of(record: LockRecord) -> str:
    if not record.is_held:
        return "done" if record.is_done else "free"
    if record.is_paused:
        return "paused"
    return "held" if demoted_leader(record) is None else "demoted"


def fire_time_of(record: LockRecord) -> datetime | None:
    """Return the newest fire time. None for a key of ``run_once``: it has ONCE, or after a failure a time before it."""
    fire_time = record.last_fire_time
    return None if fire_time is None or fire_time <= ONCE else fire_time


def claim_id(record: LockRecord) -> str | None:
    """Return the claim id, or None for a record of ShedLock for Java: it has only a holder."""
    return record.locked_by[len(record.holder) + 1 :] or None


def token_of(record: LockRecord) -> str:
    return NOTHING if record.fencing_token is None else str(record.fencing_token)


def future_fire_time(record: LockRecord) -> tuple[str, str] | None:
    """Return the fault and the cure if the last fire time is in the future of the store's clock, else None."""
    fire_time = record.last_fire_time
    if fire_time is None or fire_time <= record.read_at + LONGEST_LEAD:
        return None
    fault = (
        f"lock {record.name!r}: its last fire time, {local_iso(fire_time)}, is {in_words(fire_time - record.read_at)} "
        f"in the future: a replica's clock was wrong, and runs that are due before it are skipped"
    )
    return fault, f"forget it with: shedlock release {quote(record.name)} --forget-fire-time"


def local_time(moment: datetime | None, now: datetime) -> str:
    """Return the time of day in this machine's zone. It includes the date if that differs from the date of ``now``."""
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
