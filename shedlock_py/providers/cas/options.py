"""Options of the providers that take the time from replies."""

from __future__ import annotations

from typing import Any, TypedDict
from urllib.parse import parse_qsl

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.durations import Duration
from shedlock_py.providers.kit import parse_limits, split_options
from shedlock_py.providers.kit.options import duration_in

DEFAULT_CLOCK_ERROR = "1s"
_OPTIONS = ("timeout", "fire_time_tolerance", "clock_error")


class CasOptions(TypedDict, total=False):
    """The options of :func:`parse_options`, for a provider's ``**options``."""

    clock_error: Duration | None
    timeout: Duration | None
    fire_time_tolerance: Duration | None


def parse_options(
    url: str,
    clock_error: Duration | None = None,
    timeout: Duration | None = None,
    fire_time_tolerance: Duration | None = None,
) -> tuple[str, dict[str, Any]]:
    """Return ``url`` without the options of the programs, and these options from the arguments, or else from the URL.

    :raises ConfigurationError: an option cannot work.
    """
    url, in_url = split_options(url, (*_OPTIONS, "history"))
    if "history" in in_url:
        raise ConfigurationError("store URL: this store keeps no run history: leave history= out")
    if clock_error is None:
        clock_error = duration_in(in_url, "clock_error", DEFAULT_CLOCK_ERROR)
    limits = parse_limits(timeout, fire_time_tolerance, in_url, is_managed=True)
    limits.pop("history", None)  # from the variable SHEDLOCK_HISTORY, which may be meant for another store
    return url, {**limits, "clock_error": clock_error}


def split_query(url: str, scheme: str, names: tuple[str, ...], form: str) -> tuple[str, dict[str, str]]:
    """Return the text between ``scheme://`` and the question mark, and the options of a URL from :func:`parse_options`.

    :param names: names of the store's own options.
    :param form: an example of such a URL, for messages.
    :raises ConfigurationError: the URL has another form or an unknown option.
    """
    found, separator, rest = url.partition("://")
    location, _, query = rest.partition("?")
    if found != scheme or not separator or "#" in url:
        raise ConfigurationError(f"store URL: not of the form {form}")
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise ConfigurationError(f"store URL: not of the form {form}") from None
    if unknown := sorted(given.keys() - set(names)):
        known = ", ".join((*names, *_OPTIONS))
        if "@" in query:  # not quoted: the option may be a part of a password
            raise ConfigurationError(
                f"store URL: an unknown option; supported: {known}; in a password, write %3F for ?"
            )
        raise ConfigurationError(f"store URL: unknown option {unknown[0]!r}; supported: {known}")
    return location, given
