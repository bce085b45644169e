"""The page of all public names: ``python -m scripts.public_api`` writes docs/reference/public-names.md.

It reads the source of the package and imports nothing, so it needs no drivers. A public name is in ``__all__`` of its
module. Its description is the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import re
import sys
from itertools import pairwise
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PAGE = PROJECT / "docs" / "reference" / "public-names.md"
COMMAND = ".venv/bin/python -m scripts.public_api"
MODULES = ("shedlock_py", "shedlock_py.providers", "shedlock_py.testing")
INTEGRATIONS = "shedlock_py.integrations"
INTRODUCTION = f"""# Public names

The names that users import, by module. [Versions and support](../policy.md) says when a name may change. The other
pages of the reference have the parameters. `{COMMAND}` writes this page from the docstrings.
"""
ROLE = re.compile(r":(?:func|class|meth|data|attr|mod|exc):`([^`]+)`")
END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s|::?$")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """The source of the package.

    :param package: the folder ``shedlock_py``.
    """

    def __init__(self, package: Path) -> None:
        self._package = package
        self._trees: dict[str, ast.Module] = {}

    def public_modules(self) -> list[str]:
        """Return the modules of the page, in its order."""
        folder = self._package / "integrations"
        found = {path.stem for path in folder.glob("*.py")} | {
            path.parent.name for path in folder.glob("*/__init__.py")
        }
        return [*MODULES, *(f"{INTEGRATIONS}.{name}" for name in sorted(found - {"__init__"}))]

    def exported(self, module: str) -> list[str]:
        """Return the names in ``__all__``.

        :raises ValueError: the module lacks ``__all__``.
        """
        for node in self._tree(module).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return sorted(ast.literal_eval(node.value))
        raise ValueError(f"{module} has no __all__")

    def described(self, module: str, name: str) -> tuple[str, str]:
        """Return the kind and docstring of a name, from the module that defines it.

        :raises ValueError: it lacks a docstring, or no module defines it.
        """
        statements = self._tree(module).body
        for node in reversed(statements):  # a function with overloads is defined last
            if isinstance(node, Definition) and node.name == name:
                return _kind(node), _found(ast.get_docstring(node), module, name)
        for assignment, following in pairwise([*statements, ast.Pass()]):
            targets = getattr(assignment, "targets", None) or [getattr(assignment, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                text = following.value if isinstance(following, ast.Expr) else None
                return "value", _found(text.value if isinstance(text, ast.Constant) else None, module, name)
        for inner in ast.walk(self._tree(module)):  # also under TYPE_CHECKING
            if isinstance(inner, ast.ImportFrom) and name in [alias.name for alias in inner.names]:
                return self.described(str(inner.module), name)
        raise ValueError(f"{module} does not define {name}")

    def _tree(self, module: str) -> ast.Module:
        if module not in self._trees:
            path = self._package.joinpath(*module.split(".")[1:])
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            self._trees[module] = ast.parse(file.read_text(encoding="utf-8"))
        return self._trees[module]


def _kind(node: Definition) -> str:
    if isinstance(node, ast.ClassDef):
        return "class"
    return "async function" if isinstance(node, ast.AsyncFunctionDef) else "function"


def _found(docstring: object, module: str, name: str) -> str:
    if not isinstance(docstring, str):
        raise ValueError(f"{module}.{name} has no docstring")
    return docstring


def first_sentence(docstring: str) -> str:
    """Return the first sentence as Markdown, on one line."""
    paragraph = " ".join(docstring.strip().partition("\n\n")[0].split())
    sentence = END_OF_SENTENCE.split(paragraph)[0].rstrip(".")
    return ROLE.sub(r"`\1`", sentence).replace("``", "`").replace("|", "\\|")


def page(package: Path) -> str:
    """Return the whole page."""
    source, parts = Source(package), [INTRODUCTION]
    for module in source.public_modules():
        parts.append(f"## {module}\n\n| name | kind | description |\n|---|---|---|")
        for name in source.exported(module):
            kind, docstring = source.described(module, name)
            parts[-1] += f"\n| `{name}` | {kind} | {first_sentence(docstring)} |"
        parts[-1] += "\n"
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(PROJECT / "shedlock_py"), encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(PROJECT)}\n")
