"""Hooks of the site: links from pages to files of the repository work there, too.

On GitHub such a link opens the file. On the site each linked file becomes a page under ``files/`` that shows it. A link
to a directory becomes plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\[([^\]]*)\]\((\.\.?/[^)#\s]*)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".yml": "yaml", ".toml": "toml", ".json": "json", ".sql": "sql", ".sh": "sh"}


def outside(page: Path, target: str) -> Path | None:
    """Return the repository's file behind a link on ``page``, if the site does not contain it."""
    path = Path(os.path.normpath(page.parent / target))
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) and not path.is_relative_to(DOCS) else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    linked = {
        path
        for page in DOCS.rglob("*.md")
        for _, target, _ in LINK.findall(page.read_text(encoding="utf-8"))
        if (path := outside(page, target)) is not None and (ROOT / path).is_file()
    }
    for path in sorted(linked):
        files.append(
            File.generated(config, f"files/{path}.md", content=shown(path), inclusion=InclusionLevel.NOT_IN_NAV)
        )
    return files


def shown(path: Path) -> str:
    """Return a page that shows a file. Markdown stays unrendered: its links belong to GitHub."""
    language = LANGUAGES.get(path.suffix, "text")
    text = (ROOT / path).read_text(encoding="utf-8")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n`````{language}\n{text}\n`````\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = DOCS / page.file.src_uri

    def replace(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        path = outside(here, target)
        if path is None:
            return found[0]
        if not (ROOT / path).is_file():
            return words
        up = os.path.relpath(DOCS / "files" / f"{path}.md", here.parent)
        return f"[{words}]({up}{anchor})"

    return LINK.sub(replace, without_norun(markdown))


def without_norun(markdown: str) -> str:
    """Remove the marks of blocks that the tests do not run: only the tests need them."""
    return re.sub(r"^```python norun$", "```python", markdown, flags=re.MULTILINE)
