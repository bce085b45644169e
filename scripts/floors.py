"""Print the oldest releases that the extras in ``pyproject.toml`` allow, as pip's constraints: ``redis==5.0.1``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
FLOOR = re.compile(r"(?P<package>[\w-]+)(?:\[[\w,]+\])?>=(?P<oldest>[\d.]+)(?:,<[\d.]+)?")


def floors() -> dict[str, tuple[str, str]]:
    """Return each package's oldest release, and its extra.

    :raises ValueError: a requirement without ``>=``, or a package with two oldest releases.
    """
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found: dict[str, tuple[str, str]] = {}
    for extra, requirements in extras.items():
        for requirement in requirements:
            floor = FLOOR.fullmatch(requirement)
            if floor is not None:
                oldest, other = found.setdefault(floor["package"], (floor["oldest"], extra))
                if oldest != floor["oldest"]:
                    raise ValueError(f"{requirement!r} in the extra {extra!r} is another release than in {other!r}")
            elif not requirement.startswith("shedlock_py["):
                raise ValueError(f"{requirement!r} in the extra {extra!r} has no oldest release")
    return found


if __name__ == "__main__":
    for package, (oldest, _) in floors().items():
        print(f"{package}=={oldest}")
