"""The pages of the documentation, and the Python that is in them."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.guides.examples.scripts import PROJECT

README = PROJECT / "README.md"
DOCS = PROJECT / "docs"


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def blocks(text: str, language: str = "python") -> Iterator[tuple[str, str]]:
    """What stands behind the language, such as ``norun``, and the code, of each block; also of indented ones."""
    for indent, words, code in re.findall(
        rf"^( *)```{language}\b *([^\n]*)\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE
    ):
        yield words, re.sub(f"^{indent}", "", code, flags=re.MULTILINE)


def anchors(document: Path) -> list[str]:
    """Of its headings, as GitHub makes them; the site makes the same."""
    headings = re.findall(r"^#+ (.*)$", without_code(document.read_text()), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings]
