"""The how-to guides as the tests read them: fenced blocks, with the file that a block is taken from as its title."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.guides.examples.scripts import PROJECT

GUIDES = PROJECT / "docs" / "how-to"
EXAMPLES = PROJECT / "examples" / "how_to"

_FENCED = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    """The path of the example's file, perhaps with "(excerpt)"; empty where it is from none."""
    text: str


class Page:
    def __init__(self, name: str) -> None:
        self.name = name
        self.path = GUIDES / f"{name}.md"
        self.examples = EXAMPLES / {"django": "django_project"}.get(name, name.replace("-", "_"))

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def blocks(self) -> list[Block]:
        return [Block(*found) for found in _FENCED.findall(self.text)]

    def of(self, language: str) -> list[Block]:
        return [block for block in self.blocks if block.language == language]

    def script(self) -> str:
        """The Python that is from no file: one script for the page."""
        return "\n".join(block.text for block in self.of("python") if not block.title)

    def commands(self, beginning: str = "") -> list[str]:
        """The lines of its shell blocks that begin so, without their comments."""
        lines = "".join(block.text.replace("\\\n", " ") for block in self.of("sh")).splitlines()
        return [line.partition("  #")[0].strip() for line in lines if line.startswith(beginning)]

    def files(self) -> list[Path]:
        """Those of its example, which the page must show."""
        files = [path for path in self.examples.rglob("*") if path.is_file() and path.name != "__init__.py"]
        return [path for path in files if "__pycache__" not in path.parts]


PAGES = [Page(path.stem) for path in sorted(GUIDES.glob("*.md"))]
