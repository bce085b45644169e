"""The options that the providers share whose time comes from replies."""

from __future__ import annotations

from typing import Any

from shedlock_py.durations import Duration
from shedlock_py.providers.kit import parse_limits, split_options
from shedlock_py.providers.kit.options import duration_in

DEFAULT_CLOCK_ERROR = "1s"
_OPTIONS = ("timeout", "fire_time_tolerance", "clock_error")


def parse_options(
    url: str, clock_error: Duration | None, timeout: Duration | None, fire_time_tolerance: Duration | None
) -> tuple[str, dict[str, Any]]:
    """``url`` without the options that are the programs', and those: from the arguments, or else from the URL.

    :raises ConfigurationError: one that cannot work.
    """
    url, in_url = split_options(url, _OPTIONS)
    if clock_error is None:
        clock_error = duration_in(in_url, "clock_error", DEFAULT_CLOCK_ERROR)
    limits = parse_limits(timeout, fire_time_tolerance, in_url, is_managed=True)
    limits.pop("history", None)  # of the variable SHEDLOCK_HISTORY, which may be meant for another store
    return url, {**limits, "clock_error": clock_error}
