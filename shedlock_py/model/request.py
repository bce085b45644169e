"""Lock requests, and the rules for lock names, holders and hold times."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.text import quoted

LONGEST_NAME = 64
LONGEST_HOLDER = 200  # ShedLock's VARCHAR(255) must also hold "#" and a claim id
TRUST_MARGIN = 0.01
"""The part of a lease that its holder does not trust, because clocks run at different speeds."""
SLACK = 0.002
"""Seconds that are also subtracted, because stores round their clock to the millisecond."""
PAUSED_BY = "paused by "
"""The beginning of the holder of a paused record."""
DEMOTED = re.compile("demoted ([0-9]+)ms (.*)")
"""The holder of a record that keeps an election without a leader: for how many ms, and the node that was the leader."""

_UNSTORABLE = "[\x00-\x1f\x7f-\x9f\ud800-\udfff]"
"""Control characters and lone surrogates. They are not printable."""


def trust_ends(sent_at: float, lock_for: timedelta) -> float:
    """Return until when (monotonic seconds) to trust a lease of ``lock_for`` if its request was sent at ``sent_at``.

    The store starts to count after the request was sent. The holder counts from before, so it always stops first.
    """
    return sent_at + lock_for.total_seconds() * (1 - TRUST_MARGIN) - SLACK


def default_holder() -> str:
    """Return ``host:pid`` of this process, computed each time because a process can fork."""
    host = re.sub(_UNSTORABLE, "?", socket.gethostname())  # Python turns bytes that are not UTF-8 into lone surrogates
    return f"{host[: LONGEST_HOLDER - 20]}:{os.getpid()}"


def validate_name(name: object, what: str = "lock name", longest: int = LONGEST_NAME) -> str:
    """Return ``name`` if it can be a lock name.

    :raises ConfigurationError: ``name`` is not a string, is empty, blank or over 64 characters, or has characters that
        some stores cannot store (control characters, lone surrogates).
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"{what} must be a string, not {quoted(name)}")
    if not name.strip():
        raise ConfigurationError(f"{what} must not be empty or blank: {quoted(name)}")
    if len(name) > longest:
        raise ConfigurationError(f"{what} has {len(name)} characters; the maximum is {longest}: {quoted(name)}")
    if not name.isprintable() and re.search(_UNSTORABLE, name):
        raise ConfigurationError(f"{what} has a control character or a lone surrogate: {quoted(name)}")
    return name


def checked_lock_name(name: object) -> str:
    """Return ``name`` if a lock can be requested by it.

    Stricter than :func:`validate_name`, which also accepts the locks of other programs, for operators.

    :raises ConfigurationError: ``name`` cannot be a lock name, or is a URL. The message does not quote a URL: it may
        contain a password.
    """
    refuse_url(name)
    return validate_name(name)


def refuse_url(name: object) -> None:
    """Refuse a URL with a user or a password.

    :raises ConfigurationError: ``name`` is such a URL.
    """
    if isinstance(name, str) and re.search("://[^/]*@", name):
        raise ConfigurationError(
            "lock name must not be a URL with a user or a password: the URL of the store goes into provider=…, or into "
            "configure(…)"
        )


def is_valid_name(name: object) -> bool:
    """Return whether ``name`` can be a lock name: another program may have written any name to the store."""
    try:
        return bool(validate_name(name))
    except ConfigurationError:
        return False


def validate_holder(holder: object) -> str:
    """Return ``holder`` if a record can name it: 1 to 200 printable characters, not like a pause or a demotion."""
    validated = validate_name(holder, "holder", LONGEST_HOLDER)
    if validated.startswith(PAUSED_BY):
        raise ConfigurationError(
            f"holder must not begin with {PAUSED_BY!r}: its locks would be taken for paused ones, which operators "
            f"free while a task runs: {quoted(holder)}"
        )
    if DEMOTED.fullmatch(validated):
        raise ConfigurationError(
            f"holder must not read like a demotion, 'demoted 5000ms web-1': a node of that name would not count as the "
            f"leader: {quoted(holder)}"
        )
    return validated


@dataclass(frozen=True, init=False)
class LockRequest:
    """A lock name, hold times and a holder, to acquire the lock with. Immutable; checked when it is made.

    :param name: the identity of the task, 1 to 64 characters, compared byte by byte.
    :param lock_at_most_for: how long the lock is held if the holder dies ("10m", seconds, ``timedelta``).
    :param lock_at_least_for: how long no other holder gets the lock, however short the task was.
    :param holder: a name of this process for people to read; ``host:pid`` by default, 200 characters at most.
    :param fire_time: the scheduled time of this run (aware). With it, the lock is granted only if this fire time is
        newer than all fire times granted before: one fire time, one run.
    :param template: the template of ``name`` ("sync-{tenant}"), for metrics.
    :param next_fire_time: when the next run is to start (aware); kept in run history only.
    :raises ConfigurationError: for any value that cannot work.
    """

    name: str
    lock_at_most_for: timedelta
    lock_at_least_for: timedelta
    holder: str
    fire_time: datetime | None
    template: str | None = field(compare=False, repr=False)
    next_fire_time: datetime | None = field(compare=False, repr=False)

    def __init__(
        self,
        name: str,
        lock_at_most_for: Duration,
        lock_at_least_for: Duration = 0,
        holder: str | None = None,
        fire_time: datetime | None = None,
        template: str | None = None,
        next_fire_time: datetime | None = None,
    ) -> None:
        at_most = parse_duration(lock_at_most_for, "lock_at_most_for")
        at_least = parse_duration(lock_at_least_for, "lock_at_least_for", zero=True)
        check_hold_times(at_most, at_least)
        vars(self).update(  # the dataclass is frozen
            name=checked_lock_name(name),
            lock_at_most_for=at_most,
            lock_at_least_for=at_least,
            holder=default_holder() if holder is None else validate_holder(holder),
            fire_time=None if fire_time is None else in_utc(fire_time, "fire_time"),
            template=template,
            next_fire_time=None if next_fire_time is None else in_utc(next_fire_time, "next_fire_time"),
        )


def request_for_operator(name: str, lock_at_most_for: Duration, holder: str) -> LockRequest:
    """Return a request for an operator's pause or demotion. A task may not use such a holder."""
    request = LockRequest("any", lock_at_most_for)
    vars(request).update(name=validate_name(name), holder=validate_name(holder, "holder", LONGEST_HOLDER))
    return request


def in_utc(moment: object, what: str) -> datetime:
    """Return ``moment`` in UTC.

    :raises ConfigurationError: ``moment`` is not an aware datetime, or does not exist in UTC.
    """
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise ConfigurationError(f"{what} must be an aware datetime, not {quoted(moment)}")
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # the first or last day of the calendar, which UTC does not have
        raise ConfigurationError(f"{what} must be a moment in UTC, too: {moment!r}") from None


def validate_prefix(prefix: object, what: str = "prefix") -> str:
    """Return ``prefix`` if it is empty, or if a lock name could begin with it."""
    if not isinstance(prefix, str):
        raise ConfigurationError(f"{what} must be a string, not {quoted(prefix)}")
    if re.search(_UNSTORABLE, prefix):
        raise ConfigurationError(f"{what} has a control character or a lone surrogate: {quoted(prefix)}")
    return prefix


def check_hold_times(
    at_most: timedelta, at_least: timedelta, names: tuple[str, str] = ("lock_at_most_for", "lock_at_least_for")
) -> None:
    """Check the hold times of a lock.

    :raises ConfigurationError: the minimum hold is longer than the maximum, or no holder could trust the lease.
    """
    if trust_ends(0.0, at_most) <= 0:
        raise ConfigurationError(
            f"{names[0]} ({at_most}) is too short: a holder does not trust the last {SLACK * 1000:g} ms and "
            f"{TRUST_MARGIN:.0%} of a lease, so none of it would be trusted. The minimum is 3 ms; use seconds"
        )
    if at_least > at_most:
        raise ConfigurationError(f"{names[1]} ({at_least}) is longer than {names[0]} ({at_most})")
