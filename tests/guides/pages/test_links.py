"""The documents' links work on GitHub, and the site has every page."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.guides.documents import DOCS, anchors, without_code
from tests.support.scripts import PROJECT

pytestmark = pytest.mark.skipif(
    not (PROJECT / "shedlock_py").is_dir(),
    reason="the pages link to the package's files; this copy of the clone has none",
)
DOCUMENTS = [*sorted(PROJECT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def dead_links(document: Path) -> list[str]:
    dead = []
    for target in re.findall(r"\]\(([^)]+)\)", without_code(document.read_text())):
        name, _, anchor = target.partition("#")
        linked = document.parent / name if name else document
        if target.startswith("https://"):
            continue
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            dead.append(f"{document.relative_to(PROJECT)}: {target}")
    return dead


def test_links_lead_somewhere_on_github() -> None:
    assert len(DOCUMENTS) > 40
    assert [link for document in DOCUMENTS for link in dead_links(document)] == []


def test_no_page_is_left_out_of_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (PROJECT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {"index.md", *(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))}  # made of README


def test_make_docs_installs_what_breaks_them() -> None:
    groups = tomllib.loads((PROJECT / "pyproject.toml").read_text())["dependency-groups"]
    included = [line["include-group"] for line in groups["docs"] if isinstance(line, dict)]
    docs = [line for group in ["docs", *included] for line in groups[group] if isinstance(line, str)]
    assert [line for line in docs if re.match(r"ruff\b", line)]
