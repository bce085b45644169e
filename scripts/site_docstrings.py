"""For the reference on the site: the little reStructuredText of our docstrings becomes Markdown.

``code`` and literal blocks become code; :class:`Name` and the other roles become links to what the pages of the
reference document, or plain code where they document no such thing.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe

PAGES = Path(__file__).resolve().parents[1] / "docs" / "reference" / "api"
OPERATIONS = {"acquire", "extend", "release", "create_schema"}
"""What providers have in common, and mention: explained once."""
ROLE = re.compile(r":(?:func|class|meth|data|attr|mod|exc):`([\w.]+)`")


@cache
def documented() -> dict[str, str]:
    """The short name of each thing that has a ``:::`` line, and its path."""
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
    """``Class``, ``Class.method``, or ``method`` of the class whose docstring this is."""
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
    """Whether the class has such a member of its own, which is then in the reference."""
    member = home.members.get(name)
    return member is not None and member.has_docstring


def fence(text: str) -> str:
    """Blocks after ``::`` as fenced ones; the errors' tree is text, all others are Python.

    A block ends before the next line that is not indented; or, if none of it is, before the next empty line.
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
