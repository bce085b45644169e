"""Texts about a release in several files: they must agree, and their actions and addresses must be real.

``python -m scripts.release.texts https://…`` puts the project's address into all files that need it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from scripts.release.tools import PROJECT, FailedError
from shedlock_py import __version__

ADDRESSED = ("pyproject.toml", "CITATION.cff", "SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml")
"""The files that need the project's address. The only definition is ``Repository`` in pyproject.toml."""
READ = (*ADDRESSED, "CHANGELOG.md", "docs/policy.md", "tests/matrix/rows.py", ".github/workflows")
"""The files and directories that :func:`disagreements` compares, besides the package's version."""
PINNED = re.compile(r"[\w.-]+(?:/[\w.-]+)+@[0-9a-f]{40} # v\d+(?:\.\d+)+")


def check(tag: str | None) -> str:
    """Run this step of the release check. With a tag, the address must be a real address, too."""
    if wrong := disagreements(PROJECT, tag):
        raise FailedError("; ".join(wrong), "scripts/release/README.md says what belongs where")
    where = address(PROJECT)
    if is_placeholder(where) and tag:
        raise FailedError(f"{where} is the placeholder of the project's address", "make project-url URL=https://…")
    return f"they agree; the address is {'the placeholder ' if is_placeholder(where) else ''}{where}"


def disagreements(root: Path, tag: str | None = None) -> list[str]:
    """Return a sentence for each fault in the files below a directory."""
    return [*_versions(root, tag), *_pythons(root), *_addresses(root), *_actions(root)]


def address(root: Path) -> str:
    return str(_pyproject(root)["urls"]["Repository"])


def is_placeholder(url: str) -> bool:
    """The top-level domain ``invalid`` is reserved (RFC 2606): nobody can have such an address."""
    return str(urlsplit(url).hostname).endswith(".invalid")


def set_address(root: Path, new: str) -> list[str]:
    """Replace the former address; return the files that changed."""
    old, changed = address(root), []
    for name in ADDRESSED:
        text = (root / name).read_text()
        if old in text:
            (root / name).write_text(text.replace(old, new.rstrip("/")))
            changed.append(name)
    return changed


def _pyproject(root: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return found


def _versions(root: Path, tag: str | None) -> list[str]:
    changelog, citation = (root / "CHANGELOG.md").read_text(), (root / "CITATION.cff").read_text()
    dates = re.findall(rf"^## \[{re.escape(__version__)}\] - (\d{{4}}-\d\d-\d\d)$", changelog, re.MULTILINE)
    wrong = [] if dates else [f"CHANGELOG.md has no section '## [{__version__}] - DATE'"]
    for field, value in (("version", __version__), *(("date-released", date) for date in dates)):
        if f"\n{field}: {value}\n" not in citation:
            wrong.append(f"CITATION.cff does not say '{field}: {value}'")
    if tag is not None:
        if tag != f"v{__version__}":
            wrong.append(f"the tag is {tag}, but the version is {__version__}")
        if changelog.partition("## [Unreleased]")[2].partition("\n## ")[0].strip():
            wrong.append("CHANGELOG.md has entries under [Unreleased]")
    return wrong


def _pythons(root: Path) -> list[str]:
    """Compare the Pythons in the classifiers, the policy, the plan of ``make test-all`` and the workflow."""
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(_pyproject(root)["classifiers"]))
    said = {
        "requires-python": re.findall(r"(?<=>=)3\.\d+", str(_pyproject(root)["requires-python"])),
        "docs/policy.md": re.findall(r"3\.\d+", _row(root / "docs" / "policy.md", "Python")),
        "tests.yml": re.findall(r"3\.\d+", _row(root / ".github" / "workflows" / "tests.yml", "python:")),
        "tests/matrix/rows.py": re.findall(r'Row\("python-(3\.\d+)"', (root / "tests/matrix/rows.py").read_text()),
    }
    expected = {**dict.fromkeys(said, classifiers), "requires-python": classifiers[:1]}
    return [
        f"{place} names Python {', '.join(said[place])}, the classifiers {', '.join(classifiers)}"
        for place in said
        if said[place] != expected[place]
    ]


def _row(path: Path, name: str) -> str:
    """Return the line that begins with a name, or the table's row."""
    return next(iter(re.findall(rf"^[ |]*{name} .*$", path.read_text(), re.MULTILINE)), "")


def _addresses(root: Path) -> list[str]:
    """Check that each file has the address, and no other address of its host: a later change would miss it."""
    where, wrong = address(root), []
    host = f"{urlsplit(where).scheme}://{urlsplit(where).netloc}/"
    for name in ADDRESSED:
        text = (root / name).read_text()
        if where not in text or text.count(host) != text.count(where):
            wrong.append(f"{name} does not have the address {where}, or has another of {host}")
    return wrong


def _actions(root: Path) -> list[str]:
    """Check that each action is pinned to a full commit hash, the same in all workflows."""
    used: dict[str, set[str]] = {}
    wrong = []
    for path in sorted((root / ".github" / "workflows").glob("*.yml")):
        for action in re.findall(r"^\s*(?:- )?uses: (.+)$", path.read_text(), re.MULTILINE):
            used.setdefault(action.partition("@")[0], set()).add(action)
            if not PINNED.fullmatch(action):
                wrong.append(f"{path.name} uses {action}, which is not 'owner/name@<40 digits> # vX.Y.Z'")
    return wrong + [
        f"the workflows pin {action} to {len(pins)} commits" for action, pins in used.items() if len(pins) > 1
    ]


def main() -> int:
    if len(sys.argv) != 2 or not re.fullmatch(r"https://[\w.-]+(?:/[\w.-]+)+/?", sys.argv[1]):
        print("usage: make project-url URL=https://HOST/OWNER/NAME")
        return 2
    print(*set_address(PROJECT, sys.argv[1]), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
