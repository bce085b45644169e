"""Durations as people write them, turned into ``timedelta``.

Accepted: ``"10m"``, ``"1h30m"``, ``"1.5s"``, ``"250ms"`` (units ms, s, m, h, d, w, largest first), ISO 8601
(``"PT10M"``, ``"P1DT2H"``), ``timedelta``, and numbers, which are seconds. Kept to the millisecond, rounded up, so
that a short duration never becomes zero.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from reprlib import repr as short_repr

from shedlock_py.errors import ConfigurationError

Duration = str | timedelta | int | float

LONGEST = timedelta(days=3653)  # ten years

_MILLISECOND = timedelta(milliseconds=1)
_LONGEST_TEXT = 600  # Python can be told to refuse whole numbers of more than 640 digits
_MILLISECONDS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
# Compiled when they are first needed, which takes a millisecond for both.
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_SIMPLE = "".join(rf"(?:(?P<{unit}>{_NUMBER})\s*{unit}\s*)?" for unit in _MILLISECONDS)
_ISO = (
    rf"P(?:(?P<w>{_NUMBER})W)?(?:(?P<d>{_NUMBER})D)?"
    rf"(?:T(?=[0-9])(?:(?P<h>{_NUMBER})H)?(?:(?P<m>{_NUMBER})M)?(?:(?P<s>{_NUMBER})S)?)?"
)


def parse_duration(value: Duration, what: str = "duration", *, zero: bool = False) -> timedelta:
    """``value`` as a ``timedelta`` of whole milliseconds, rounded up.

    ``what`` names the setting in the error. Zero is refused unless ``zero`` is true; negative values, NaN, booleans,
    bare numbers as text (``"10"``: ten what?) and anything over ten years always are.

    :raises ConfigurationError: quoting the value and showing the accepted forms.
    """
    milliseconds = _milliseconds(value)
    if milliseconds is None:
        raise ConfigurationError(_explain(value, what, "is not a duration"))
    if milliseconds < 0:
        raise ConfigurationError(_explain(value, what, "is negative"))
    if milliseconds == 0 and not zero:
        raise ConfigurationError(_explain(value, what, "is zero"))
    if milliseconds > _LONGEST_MILLISECONDS:
        raise ConfigurationError(_explain(value, what, "is over ten years"))
    return milliseconds * _MILLISECOND


def in_milliseconds(value: timedelta) -> int:
    """``value`` in whole milliseconds, rounded up."""
    return -(-value // _MILLISECOND)


_LONGEST_MILLISECONDS = in_milliseconds(LONGEST)


def _milliseconds(value: object) -> int | None:
    """The number of milliseconds, rounded away from zero, or None where ``value`` is no duration."""
    if isinstance(value, bool):
        return None
    if isinstance(value, timedelta):
        whole, rest = divmod(value, _MILLISECOND)
        return whole + 1 if rest and whole >= 0 else whole
    if isinstance(value, int):
        return value * 1000
    if isinstance(value, float) and math.isfinite(value):
        # repr: 0.1 means a tenth of a second, not 0.1000000000000000055 s, which would round up a whole millisecond.
        number, _, exponent = repr(float(value)).partition("e")
        return _rounded({"s": number}, int(exponent or 0))
    if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
        text = value.strip()
        found = re.fullmatch(_ISO if text[:1] in ("P", "p") else _SIMPLE, text, re.IGNORECASE)
        parts = {unit: number for unit, number in found.groupdict().items() if number} if found else {}
        return _rounded(parts) if parts else None
    return None


def _rounded(parts: dict[str, str], exponent: int = 0) -> int:
    """The sum of a number for each unit, in whole milliseconds, rounded away from zero. Whole numbers make it exact."""
    total, divisor = 0, 1
    for unit, number in parts.items():
        whole, _, decimals = number.partition(".")
        part = int(whole + decimals) * _MILLISECONDS[unit]
        power = exponent - len(decimals)
        if power >= 0:
            total += part * 10**power * divisor
        else:
            total, divisor = total * 10**-power + part * divisor, divisor * 10**-power
    return total // divisor if total < 0 else -(-total // divisor)


def _quoted(value: object) -> str:
    try:
        return short_repr(value)
    except ValueError:  # Python refuses to write out whole numbers of thousands of digits
        return "(a huge number)"


def _explain(value: object, what: str, fault: str) -> str:
    return (
        f"{what}={_quoted(value)} {fault}; write for example '10m', '1h30m', '1.5s', '250ms', 'PT10M', "
        f"timedelta(minutes=10), or a number of seconds, up to ten years"
    )
