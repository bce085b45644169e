"""Durations as people write them, as ``timedelta``.

Accepted: ``"10m"``, ``"1h30m"``, ``"1.5s"``, ``"250ms"`` (units ms, s, m, h, d, w, largest first), ISO 8601
(``"PT10M"``, ``"P1DT2H"``), ``timedelta``, and numbers of seconds (also ``Decimal``). Durations are rounded up to the
millisecond, so that a short duration never becomes zero.
"""

from __future__ import annotations

import logging
import math
import re
import sys
from datetime import timedelta
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.text import in_words, quoted

if TYPE_CHECKING:
    from decimal import Decimal

logger = logging.getLogger("shedlock_py")

if TYPE_CHECKING:
    Duration = str | timedelta | int | float | Decimal
else:
    Duration = str | timedelta | int | float

LONGEST = timedelta(days=3653)  # ten years
MOSTLY_MILLISECONDS = 10_000
"""A number this large without a unit was probably meant as milliseconds."""

MILLISECOND = timedelta(milliseconds=1)
_LONGEST_TEXT = 600  # Python can be configured to refuse integers of over 640 digits
_UNITS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}  # in milliseconds
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_SIMPLE = "".join(rf"(?:(?P<{unit}>{_NUMBER})\s*{unit}\s*)?" for unit in _UNITS)
_ISO = (
    rf"P(?:(?P<w>{_NUMBER})W)?(?:(?P<d>{_NUMBER})D)?"
    rf"(?:T(?=[0-9])(?:(?P<h>{_NUMBER})H)?(?:(?P<m>{_NUMBER})M)?(?:(?P<s>{_NUMBER})S)?)?"
)


def parse_duration(value: Duration, what: str = "duration", *, zero: bool = False) -> timedelta:
    """Return ``value`` as a ``timedelta`` of whole milliseconds, rounded up.

    The error names the setting ``what``. Zero is refused unless ``zero`` is true. Always refused: negative values, NaN,
    booleans, text without a unit (``"10"``), and more than ten years.

    :raises ConfigurationError: with the value and the accepted forms.
    """
    shortest = timedelta(0) if zero else MILLISECOND
    if type(value) is timedelta and shortest <= value <= LONGEST and not value % MILLISECOND:
        return value  # already parsed
    milliseconds = _milliseconds(value)
    if milliseconds is None:
        fault = "is not a duration"
    elif milliseconds < 0:
        fault = "is negative"
    elif milliseconds == 0 and not zero:
        fault = "is zero"
    elif milliseconds > LONGEST // MILLISECOND:
        fault = "is over ten years"
    else:
        parsed = math.ceil(milliseconds) * MILLISECOND
        if not isinstance(value, str | timedelta) and value >= MOSTLY_MILLISECONDS:
            _warn_of_milliseconds(what, value, parsed)
        return parsed
    try:
        shown = quoted(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        shown = "(a huge number)"
    raise ConfigurationError(
        f"{what}={shown} {fault}; write for example '10m', '1h30m', '1.5s', '250ms', 'PT10M', "
        f"timedelta(minutes=10), or a number of seconds, up to ten years"
    )


@cache  # one warning for each setting
def _warn_of_milliseconds(what: str, value: float | Decimal, parsed: timedelta) -> None:
    logger.warning("%s=%s is %s; for milliseconds write '%sms'", what, value, in_words(parsed), value)


def is_duration(text: str) -> bool:
    """Return whether ``text`` is a duration with a unit."""
    return _milliseconds(text) is not None


def in_milliseconds(value: timedelta) -> int:
    """Return ``value`` in whole milliseconds, rounded up."""
    return -(-value // MILLISECOND)


def _milliseconds(value: object) -> Fraction | int | None:
    """Return the exact number of milliseconds, or None if ``value`` is not a duration."""
    if isinstance(value, timedelta):
        whole, rest = divmod(value, MILLISECOND)
        return whole + bool(rest) if whole >= 0 else whole
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value * 1000
    decimal = sys.modules.get("decimal")  # its import takes a millisecond; a caller with a Decimal has imported it
    if decimal is not None and isinstance(value, decimal.Decimal) and value.is_finite():
        return _exact(f"{value:f}") * 1000
    if isinstance(value, float) and math.isfinite(value):
        # repr(), because 0.1 means a tenth of a second. Its exact value, 0.1000000000000000055, would be rounded up by
        # a millisecond.
        return _exact(repr(float(value))) * 1000
    if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
        text = value.strip()
        found = re.fullmatch(_ISO if text[:1] in ("P", "p") else _SIMPLE, text, re.IGNORECASE)
        parts = {unit: number for unit, number in found.groupdict().items() if number} if found else {}
        return sum(_exact(number) * _UNITS[unit] for unit, number in parts.items()) if parts else None
    return None


def _exact(number: str) -> Fraction | int:
    if number.removesuffix(".0").isdecimal():
        return int(number.removesuffix(".0"))
    return Fraction(number)
