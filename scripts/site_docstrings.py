"""Convert the reStructuredText of our docstrings to Markdown, for the site's reference.

``code`` and literal blocks become code; :class:`Name` and other roles become links to documented names, or plain code
for other names.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe

PAGES = Path(__file__).resolve().parents[1] / "docs" / "reference" / "api"
OPERATIONS = {"acquire", "extend", "release", "create_schema"}
"""Common operations of providers, explained once."""
ROLE = re.compile(r":(?:func|class|meth|data|attr|mod|exc):`([\w.]+)`")


@cache
def documented() -> dict[str, str]:
    """Return the short name of each ``:::`` line, with its path."""
    lines = [line for page in sorted(PAGES.glob("*.md")) for line in page.read_text().splitlines()]
    paths = [line.removeprefix("::: ").strip() for line in lines if line.startswith("::: ")]
    return {path.rpartition(".")[2]: path for path in paths}


class PlainMarkdown(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value, obj)


def markdown(text: str, around: griffe.Object) -> str:
    text = ROLE.sub(lambda found: link(found[1], around), text)
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    return fence(text)


def link(name: str, around: griffe.Object) -> str:
    """Link a name in a docstring: ``Class``, ``Class.method``, or a ``method`` of the docstring's class."""
    owner, _, member = name.partition(".")
    path = documented().get(owner)
    if path is not None:
        return f"[`{name}`][{path}{'.' + member if member else ''}]"
    home = around if around.is_class else around.parent
    if home is not None and home.is_class and home.name in documented() and has_docstring(home, name):
        return f"[`{name}`][{documented()[home.name]}.{name}]"
    if name in OPERATIONS:
        return f"[`{name}`][shedlock_py.LockProvider.{name}]"
    return f"`{name}`"


def has_docstring(home: griffe.Object, name: str) -> bool:
    """Whether the class itself has this member with a docstring, so that the reference includes it."""
    member = home.members.get(name)
    return member is not None and member.has_docstring


def fence(text: str) -> str:
    """Fence the blocks after ``::``. The errors' tree is text, other blocks are Python.

    A block ends before the next line that is not indented. A block without indentation ends before the next empty line.
    """
    lines, result = text.splitlines(), list[str]()
    while lines:
        line = lines.pop(0)
        if not line.rstrip().endswith("::"):
            result.append(line)
            continue
        while lines and not lines[0].strip():
            lines.pop(0)
        block = list[str]()
        indent = "    " if lines and lines[0].startswith("    ") else ""
        while lines and (lines[0].startswith("    ") or not lines[0].strip() if indent else lines[0].strip()):
            block.append(lines.pop(0).removeprefix(indent))
        introduction = line.rstrip().removesuffix("::").rstrip()
        language = "text" if "├" in text else "python"
        result += [*([f"{introduction}:", ""] if introduction else []), f"```{language}"]
        result += ["\n".join(block).strip("\n"), "```", ""]
    return "\n".join(result)
