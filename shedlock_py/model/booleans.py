"""Booleans as people write them in environment variables, URLs and configuration files.

The words are those of click, which reads the options of ``shedlock`` from some of the same variables.
"""

from __future__ import annotations

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.text import quoted

_WORDS = dict.fromkeys(("true", "yes", "on", "1", "t", "y"), True)
_WORDS |= dict.fromkeys(("false", "no", "off", "0", "f", "n"), False)


def boolean_of(value: object) -> bool | None:
    """What ``value`` says, in upper or lower case; None if it says neither."""
    return _WORDS.get(str(value).strip().lower())


def parse_boolean(value: object, what: str) -> bool:
    """What ``value`` says. ``what`` names the setting in the error.

    :raises ConfigurationError: it says neither.
    """
    found = boolean_of(value)
    if found is None:
        raise ConfigurationError(f"{what}={quoted(value)} is neither true nor false")
    return found
