"""Settings from environment variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.durations import parse_duration
from shedlock_py.model.request import validate_holder
from shedlock_py.settings.options import keep_alive_of_text
from shedlock_py.settings.urls import provider_from_text, reopening


def settings_of(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the settings of the environment variables, parsed, by field.

    :param environ: replaces ``os.environ``.
    :raises ConfigurationError: a value cannot work.
    """
    given = os.environ if environ is None else environ
    found: dict[str, Any] = {}
    with reopening(given.get("SHEDLOCK_STORE")):
        for variable, (name, parse) in VARIABLES.items():
            if text := given.get(variable, "").strip():
                found[name] = parse(text, variable)
    return found


def _parse_store(text: str, variable: str) -> Any:
    try:
        return provider_from_text(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{variable}: {error}") from error.__cause__


VARIABLES: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "SHEDLOCK_STORE": ("provider", _parse_store),
    "SHEDLOCK_LOCK_AT_MOST_FOR": ("default_lock_at_most_for", parse_duration),
    "SHEDLOCK_LOCK_AT_LEAST_FOR": ("default_lock_at_least_for", partial(parse_duration, zero=True)),
    "SHEDLOCK_KEEP_ALIVE": ("keep_alive", keep_alive_of_text),
    "SHEDLOCK_HOLDER": ("holder", lambda text, _: validate_holder(text)),
}
"""The variables of :meth:`Settings.from_env`, with the field that a variable sets, and the parser of its text
and name."""
