"""The options of every provider, in its constructor and in its URL."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import NotRequired, TypedDict
from urllib.parse import unquote_plus

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.durations import Duration, parse_duration
from shedlock_py.model.run import MOST_RUNS
from shedlock_py.model.text import clean_url, quoted

OPTIONS = ("timeout", "fire_time_tolerance", "history")

DEFAULT_TIMEOUT = timedelta(seconds=5)
"""The time limit of one operation, connecting included, for a provider that was opened from a URL."""
DEFAULT_FIRE_TIME_TOLERANCE = timedelta(minutes=5)
"""How far a fire time may be ahead of the store's clock, because a replica's clock may be wrong by that much."""
HISTORY_VARIABLE = "SHEDLOCK_HISTORY"
"""The environment variable for ``history`` if neither the argument nor the URL sets it."""


def split_options(url: str, names: Collection[str] = OPTIONS) -> tuple[str, dict[str, str]]:
    """Return ``url`` without the query parameters ``names``, and the values of these parameters.

    White space around the URL is removed: see :func:`~shedlock_py.model.text.clean_url`.

    :raises ConfigurationError: the URL is empty, too long or contains a control character; or a value contains ``@``,
        which may end a password.
    """
    start, question_mark, query = clean_url(url).partition("?")
    query, hash_mark, fragment = query.partition("#")
    parts = query.split("&") if query else []
    options = {name: unquote_plus(value) for name, _, value in (part.partition("=") for part in parts) if name in names}
    if any("@" in value for value in options.values()):  # not quoted: a password contains the question mark
        raise ConfigurationError("store URL: in a password, write %3F for ? and %40 for @")
    rest = "&".join(part for part in parts if part.partition("=")[0] not in names)
    return start + (question_mark + rest if rest else "") + hash_mark + fragment, options


class Limits(TypedDict):
    """The options of :class:`StorePrograms` for every provider."""

    timeout: float | None
    fire_time_tolerance: timedelta
    history: NotRequired[int]
    """Set only if the store is to keep run history."""


def parse_limits(
    timeout: Duration | None,
    fire_time_tolerance: Duration | None,
    in_url: Mapping[str, str],
    *,
    is_managed: bool,
    history: int | None = None,
) -> Limits:
    """Return the options from the constructor's arguments, or else from the URL. A bare number in a URL is seconds.

    :param is_managed: True if the provider opens its own connections. A user-supplied client has its own limits.
    :param history: the number of runs to keep for each lock name. If None, the URL or the variable SHEDLOCK_HISTORY
        says it.
    :raises ConfigurationError: a value is not a duration, or a limit was set for a user-supplied client.
    """
    if timeout is not None and not is_managed:
        raise ConfigurationError(
            "timeout= is for providers that are made from a URL: set the time limits of your own engine or client "
            "where you make it"
        )
    if timeout is None:
        timeout = duration_in(in_url, "timeout", DEFAULT_TIMEOUT)
    if fire_time_tolerance is None:
        fire_time_tolerance = duration_in(in_url, "fire_time_tolerance", DEFAULT_FIRE_TIME_TOLERANCE)
    limits: Limits = {
        "timeout": parse_duration(timeout, "timeout").total_seconds() if is_managed else None,
        "fire_time_tolerance": parse_duration(fire_time_tolerance, "fire_time_tolerance", zero=True),
    }
    if kept := _parse_history(history, in_url):
        limits["history"] = kept
    return limits


def duration_in(in_url: Mapping[str, str], name: str, default: Duration) -> Duration:
    """Return the option ``name`` of a URL. A bare number is seconds."""
    given = in_url.get(name, default)
    try:
        return float(given)  # type: ignore[arg-type]  # a timedelta, or text with a unit, is returned unchanged
    except (ValueError, TypeError):
        return given


def _parse_history(history: object, in_url: Mapping[str, str]) -> int:
    given, what = history, "history="
    if given is None:
        given, what = in_url.get("history"), "history in the URL"
    if given is None:
        given, what = os.environ.get(HISTORY_VARIABLE) or None, HISTORY_VARIABLE
    if given is None:
        return 0
    number: object = int(given) if isinstance(given, str) and given.isascii() and given.isdecimal() else given
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MOST_RUNS:
        raise ConfigurationError(
            f"{what} must be how many runs of each lock name to keep, 0 to {MOST_RUNS}, not {quoted(given)}"
        )
    return number
