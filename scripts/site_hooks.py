"""What the site needs besides Markdown: README as its first page, and links to files of the repository.

On GitHub such a link opens the file. For the site each file that a page links to becomes a page of its own, under
``files/``, that shows it. A link to a directory becomes plain text. ``llms.txt`` links to pages of the site there.
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


def first_page() -> str:
    """README, with its links as those of a page in ``docs``."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\((?!https:|#|docs/)", "](../", text)
    return text.replace("](docs/", "](")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {page: page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")}
    pages[DOCS / "index.md"] = first_page()
    files.append(File.generated(config, "index.md", content=first_page()))
    linked = {
        path
        for page, text in pages.items()
        for _, target, _ in LINK.findall(text)
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


def on_post_build(config: MkDocsConfig) -> None:
    """Let ``llms.txt`` link to the pages that the site serves."""
    served = Path(config.site_dir, "llms.txt")
    text = served.read_text(encoding="utf-8").replace("README.md)", "index.html)").replace(".md)", ".html)")
    served.write_text(text, encoding="utf-8")
