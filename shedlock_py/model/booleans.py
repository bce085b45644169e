"""Booleans as people write them in environment variables, URLs and configuration files.

The words are click's, because ``shedlock`` reads its options from some of the same variables.
"""

from __future__ import annotations

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.text import quoted

_WORDS = dict.fromkeys(("true", "yes", "on", "1", "t", "y"), True)
_WORDS |= dict.fromkeys(("false", "no", "off", "0", "f", "n"), False)


def boolean_of(value: object) -> bool | None:
    """Return ``value`` as a boolean, in upper or lower case; None if it is not a boolean."""
    return _WORDS.get(str(value).strip().lower())


def parse_boolean(value: object, what: str) -> bool:
    """Return ``value`` as a boolean. The error names the setting ``what``.

    :raises ConfigurationError: ``value`` is not a boolean.
    """
    found = boolean_of(value)
    if found is None:
        raise ConfigurationError(f"{what}={quoted(value)} is neither true nor false")
    return found
