"""Print the oldest releases that the extras in ``pyproject.toml`` allow, as pip's constraints: ``redis==5.0.1``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
FLOOR = re.compile(r"(?P<package>[\w-]+)(?:\[[\w,]+\])?>=(?P<oldest>[\d.]+)(?:,<[\d.]+)?")


def floors() -> dict[str, tuple[str, str]]:
    """For each package of the extras its oldest release, and the extra.

    :raises ValueError: a requirement that does not say ``>=``.
    """
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = {}
    for extra, requirements in extras.items():
        for requirement in requirements:
            floor = FLOOR.fullmatch(requirement)
            if floor is not None:
                found[floor["package"]] = (floor["oldest"], extra)
            elif not requirement.startswith("shedlock_py["):
                raise ValueError(f"{requirement!r} in the extra {extra!r} has no oldest release")
    return found


if __name__ == "__main__":
    for package, (oldest, _) in floors().items():
        print(f"{package}=={oldest}")
