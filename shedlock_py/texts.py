"""Texts that others have written, as names, holders and errors: none of them may control a terminal or a log."""

from __future__ import annotations

from datetime import timedelta
from typing import Any


def printable(text: str) -> str:
    """``text`` with control characters, line ends, changes of direction and the like escaped, as in ``repr``."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(error: BaseException | str) -> str:
    return " ".join(str(error).split())


def parsed(text: str | bytes) -> Any:
    """``text`` as JSON.

    :raises ValueError: it is none, or is nested too deeply for Python.
    """
    import json  # late: few programs need it at their start

    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def in_words(duration: timedelta) -> str:
    """``duration`` in its two largest units: 3d 4h, 9m 58s, 4.2s."""
    seconds = duration.total_seconds()
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        number, whole = divmod(whole, size)
        if number or parts:
            parts.append(f"{number}{unit}")
    shown = parts[:2]
    return shown[0] if len(shown) == 2 and shown[1][:-1] == "0" else " ".join(shown)
