"""The oldest supported releases of other packages, as ``pyproject.toml`` declares them."""

from __future__ import annotations

import re

from shedlock_py.errors import ConfigurationError

OLDEST = {
    "sqlalchemy": ("2.0.24", "sqlalchemy"),
    "redis": ("5.0.1", "redis"),
    "pymongo": ("4.13.2", "mongodb"),
    "click": ("8.3", "cli"),
}
"""For each package its oldest release, and the extra of shedlock_py that requires it."""


def require(package: str, installed: str) -> None:
    """Refuse a package that is too old, before it fails with an error that does not name it.

    :param installed: its version, as the package reports it.
    :raises ConfigurationError: it is older than :data:`OLDEST`.
    """
    oldest, extra = OLDEST[package]
    if _numbers(installed) < _numbers(oldest):
        raise ConfigurationError(
            f"{package} {installed} is too old: shedlock_py needs {package}>={oldest}; "
            f"pip install --upgrade 'shedlock_py[{extra}]'"
        )


def _numbers(version: str) -> tuple[int, ...]:
    """``"2.1.0b2"`` as ``(2, 1, 0)``: a pre-release counts as its release."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(number) for number in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:
        numbers.pop()  # 4.13.0 is 4.13
    return tuple(numbers)
