"""The documentation's pages for the tests: fenced blocks, headings, and their Python as scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.support.scripts import PROJECT, run_python

README = PROJECT / "README.md"
DOCS = PROJECT / "docs"
GUIDES = DOCS / "how-to"
EXAMPLES = PROJECT / "examples" / "how_to"

_FENCED = re.compile(r"^( *)```(\w+) *([^\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    """The path of an example's file, perhaps with "(excerpt)"; empty if the block is not from a file."""
    is_run: bool
    """False for a block marked ``norun``."""
    text: str


def blocks(text: str, language: str = "python") -> list[Block]:
    """Return the blocks of one language, including indented blocks."""
    return [block for block in all_blocks(text) if block.language == language]


def all_blocks(text: str) -> list[Block]:
    found = []
    for indent, language, words, code in _FENCED.findall(text):
        title = re.fullmatch(r'title="([^"]+)"', words)
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        found.append(Block(language, title[1] if title else "", words != "norun", code))
    return found


def script_of(text: str) -> str:
    """Return the page's Python that is not from a file, as one script."""
    return "\n".join(block.text for block in blocks(text) if block.is_run and not block.title)


def check_script(script: str, directory: Path) -> None:
    """Run a script in a directory, with warnings as errors. Use pytest if it defines tests."""
    assert not re.search(r":\w+@[\w.-]+\.example", script), "an address was not replaced"
    path = directory / "test_page.py"
    path.write_text(script)
    runner = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if "\ndef test_" in script else []
    done = run_python(*runner, path.name, cwd=directory, timeout=100)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(document: Path) -> list[str]:
    """Return the anchors of its headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", without_code(document.read_text()), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings]


def yaml_of(page: Path, title: str) -> list[Any]:
    found = re.search(rf'^```yaml title="{re.escape(title)}"\n(.*?)^```', page.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return list(yaml.safe_load_all(found[1]))


_EXAMPLES_OF = {
    "django": "django_project",
    "django-schedulers": "django_project",
    "fencing-a-transaction": "django_project",
    "job-store": "apscheduler",
    "one-scheduler-more": "one_scheduler",
    "arq-dramatiq": "task_queues",
}
"""The directories that are not named after their page."""


class Page:
    """A how-to guide and the files of its example."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = GUIDES / f"{name}.md"
        self.examples = EXAMPLES / _EXAMPLES_OF.get(name, name.replace("-", "_"))

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def blocks(self) -> list[Block]:
        return all_blocks(self.text)

    def of(self, language: str) -> list[Block]:
        return [block for block in self.blocks if block.language == language]

    def commands(self, beginning: str = "") -> list[str]:
        """Return the lines of its shell blocks with this beginning, without comments."""
        lines = "".join(block.text.replace("\\\n", " ") for block in self.of("sh")).splitlines()
        return [line.partition("  #")[0].strip() for line in lines if line.startswith(beginning)]

    def files(self) -> list[Path]:
        """The files of its example, which the pages of that example must show."""
        files = [path for path in self.examples.rglob("*") if path.is_file() and path.name != "__init__.py"]
        return [path for path in files if "__pycache__" not in path.parts]


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield title and text of each part with a ``##`` heading. The first part has an empty title."""
    title, lines, fenced = "(top)", list[str](), False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("## ") and not fenced:
            yield title, "\n".join(lines)
            title, lines = line.removeprefix("## "), []
        lines.append(line)
    yield title, "\n".join(lines)


SECTIONS = dict(_sections(README.read_text()))
PAGES = [Page(path.stem) for path in sorted(GUIDES.glob("*.md"))]
