"""Adapters to tools that run or watch jobs, each of which is an extra. Here: what the listeners share."""

from __future__ import annotations

import re
from collections.abc import Callable

Label = Callable[[str], str]


def label_of(name: str, template: str | None, label: Label | None) -> str:
    """The label of a lock name: by ``label`` if there is one, else its template if it was filled from one."""
    return label(name) if label else template or name


def slug_of(name: str) -> str:
    """``name`` as monitoring services name a check: lower-case letters, digits, "-" and "_"."""
    return re.sub("[^a-z0-9_]+", "-", name.lower()).strip("-")


def missing_extra(extra: str, package: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error for an integration whose package is not installed."""
    return ModuleNotFoundError(
        f"shedlock_py.integrations.{extra} needs the package {package!r}: pip install 'shedlock_py[{extra}]'",
        name=error.name,
    )
