"""Texts that others have written, as names, holders and errors: none of them may control a terminal or a log."""

from __future__ import annotations

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
