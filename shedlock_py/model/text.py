"""Texts from users and stores. A name, a holder or an error from the store must not control a terminal or a log."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from reprlib import repr as short_repr
from typing import Any

from shedlock_py.errors import ConfigurationError

LONGEST_URL = 10_000
"""Characters. Drivers would take minutes to parse a longer URL."""
_CONTROL = "[\x00-\x1f\x7f-\x9f\u2028\u2029]"


def clean_url(url: str) -> str:
    """Return ``url`` without the white space around it, which a Secret made with ``echo`` or a CRLF file adds.

    Every function that takes a URL calls this function, so that the same URL is the same store everywhere. Messages do
    not quote the URL.

    :raises ConfigurationError: the URL is empty or too long, or has a control character inside.
    """
    cleaned = url.strip()
    if not cleaned:
        raise ConfigurationError(
            "the store URL is empty. Is its environment variable set? Examples: 'postgresql://user@host/db', "
            "'redis://host:6379/0'"
        )
    if len(cleaned) > LONGEST_URL:
        raise ConfigurationError(f"the store URL has {len(cleaned)} characters; the maximum is {LONGEST_URL}")
    if not cleaned.isprintable() and (found := re.search(_CONTROL, cleaned)):
        raise ConfigurationError(
            f"the store URL has a control character, {found[0]!r}, at position {found.start() + 1}: remove it (a line "
            f"break in the environment variable or file?); in a password, write it percent-encoded, as %0A"
        )
    return cleaned


def quoted(value: object) -> str:
    """Return a short ``repr`` of ``value`` for a message, without a URL: a URL may contain a password."""
    if isinstance(value, str):
        return "a URL" if has_url(value) else short_repr(value)
    shown = short_repr(value)
    try:
        has_one = not isinstance(value, int) and has_url(repr(value))
    except Exception:  # short_repr shows such an object without its repr
        has_one = False
    return f"a URL in {type(value).__name__}" if has_one else shown


def has_url(text: str) -> bool:
    return "://" in text


def printable(text: str) -> str:
    """Escape the characters of ``text`` that are not printable, such as line ends and changes of direction."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(error: BaseException | str) -> str:
    return " ".join(str(error).split())


def parsed(text: str | bytes) -> Any:
    """Return ``text`` as JSON.

    :raises ValueError: ``text`` is not JSON, or is nested too deeply for Python.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def in_words(duration: timedelta) -> str:
    """Return ``duration`` in its two largest units: 3d 4h, 9m 58s, 4.2s, 12ms."""
    seconds = max(duration.total_seconds(), 0)
    if seconds < 0.05:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        number, whole = divmod(whole, size)
        if number or parts:
            parts.append(f"{number}{unit}")
    shown = parts[:2]
    return shown[0] if len(shown) == 2 and shown[1][:-1] == "0" else " ".join(shown)
