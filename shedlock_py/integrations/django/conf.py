"""``settings.SHEDLOCK``: the database, the options of the provider, and the defaults of the guards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.request import validate_name
from shedlock_py.settings.defaults import Settings

OPTIONS = ("TABLE_NAME", "SCHEMA", "EXTRA_COLUMNS", "TIMEOUT", "FIRE_TIME_TOLERANCE", "HISTORY")
"""The options of :class:`SqlAlchemyLockProvider`, in capitals."""
DEFAULTS = tuple(option.name.upper() for option in fields(Settings) if "provider" not in option.name)
"""The options of :func:`configure`, in capitals."""
_KEYS = ("DATABASE", *OPTIONS, *DEFAULTS, "ELECTIONS")


@dataclass(frozen=True)
class Conf:
    """The parsed settings."""

    database: str = "default"
    """The alias in ``DATABASES``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    elections: Sequence[str] = ()
    """The lock names of elections: the admin does not free their leaders."""


def read_settings() -> Conf:
    """Parse the settings.

    :raises ConfigurationError: ``SHEDLOCK`` is not a dictionary, or has an unknown key or a wrong value.
    """
    given: object = getattr(settings, "SHEDLOCK", {})
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"settings.SHEDLOCK must be a dictionary, not {type(given).__name__}")
    for key in given:
        if key not in _KEYS:
            near = get_close_matches(str(key).upper(), _KEYS, 1)
            cure = f"did you mean {near[0]!r}?" if near else f"keys: {', '.join(_KEYS)}"
            raise ConfigurationError(f"settings.SHEDLOCK: unknown key {key!r}; {cure}")
    database = given.get("DATABASE", "default")
    if not isinstance(database, str):
        raise ConfigurationError(f"settings.SHEDLOCK['DATABASE'] must be an alias of DATABASES, not {database!r}")
    elections: object = given.get("ELECTIONS", ())
    if isinstance(elections, str) or not isinstance(elections, Sequence):
        raise ConfigurationError(f"settings.SHEDLOCK['ELECTIONS'] must be a list of names, not {elections!r}")
    return Conf(
        database,
        {key.lower(): given[key] for key in OPTIONS if key in given},
        {key.lower(): given[key] for key in DEFAULTS if key in given},
        [validate_name(name) for name in elections],
    )


def listeners_of(defaults: Mapping[str, Any]) -> list[Any]:
    """Return the listeners. A setting may name listeners by their dotted path.

    :raises ConfigurationError: a path cannot be imported, or the setting is not a list.
    """
    found = []
    given: object = defaults.get("listeners", ())
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(f"settings.SHEDLOCK['LISTENERS'] must be a list, not {given!r}")
    for listener in given:
        try:
            found.append(import_string(listener) if isinstance(listener, str) else listener)
        except ImportError as error:
            raise ConfigurationError(f"settings.SHEDLOCK['LISTENERS']: {error}") from error
    return found
