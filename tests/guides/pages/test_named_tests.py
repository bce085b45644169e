"""The tests named by docs/results/found-by-attack.md exist, and so do files that pages name."""

from __future__ import annotations

import re
from datetime import date
from functools import cache
from pathlib import Path

from shedlock_py.testing import contract
from tests.support.scripts import PROJECT

PAGES = [*sorted((PROJECT / "docs").rglob("*.md")), *PROJECT.glob("*.md"), PROJECT / "tests" / "README.md"]
TABLE = (PROJECT / "docs" / "results" / "found-by-attack.md").read_text()
ROWS = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line.startswith("| 20")]
CONTRACT = sorted(Path(contract.__file__).parent.glob("*.py"))
TARGETS = re.findall(r"^([\w.-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE)


@cache
def defined_in(file: Path) -> frozenset[str]:
    """Return functions as ``test_name`` or ``TestClass::test_name``, and classes."""
    names, owner = set(), ""
    for indent, kind, name in re.findall(r"^( *)(?:async )?(def|class) (\w+)", file.read_text(), re.MULTILINE):
        if not indent:
            owner = f"{name}::" if kind == "class" else ""
            names.add(name)
        else:
            names.add(f"{owner}{name}")
    return frozenset(names)


def is_there(cell: str) -> bool:
    """Return whether ``tests/FILE.py``, ``tests/FILE.py::NAME``, ``tests/contract -k NAME`` or ``make TARGET …``
    exists."""
    command = cell.strip("`")
    if command.startswith("make "):
        return command.split()[1] in TARGETS
    path, _, name = command.partition(" -k ") if " -k " in command else command.partition("::")
    if not path.startswith("tests/") or not (PROJECT / path).exists():
        return False
    if " -k " in command:
        return any(each.endswith(f"::{name}") for file in CONTRACT for each in defined_in(file))
    return not name or name in defined_in(PROJECT / path)


def test_the_tests_of_the_faults_that_were_found_are_there() -> None:
    assert len(ROWS) > 200
    assert {len(row) for row in ROWS} == {5}
    assert [cell for _, _, _, cell, _ in ROWS if cell.strip() and not is_there(cell)] == []


def test_the_newest_fault_comes_first() -> None:
    dates = [date.fromisoformat(row[0]) for row in ROWS]
    assert dates == sorted(dates, reverse=True)
    assert f"{len(dates)} faults" in TABLE


def test_the_files_of_tests_that_a_page_names_are_there() -> None:
    named = {
        (page.name, name) for page in PAGES for name in re.findall(r"(?<![\w/])tests/[\w/]+\.py\b", page.read_text())
    }
    assert len(named) > 20
    assert {each for each in named if not (PROJECT / each[1]).exists()} == set()


def test_a_link_with_the_name_of_a_test_leads_to_its_file() -> None:
    links = [
        (page, name, target)
        for page in PAGES
        for name, target in re.findall(r"\[`(test_\w+)`\]\(([^)]+\.py)\)", page.read_text())
    ]
    assert len(links) > 10
    wrong = {
        name
        for page, name, target in links
        if name not in {each.split("::")[-1] for each in defined_in((page.parent / target).resolve())}
    }
    assert wrong == set()


def test_a_name_that_does_not_exist_is_found() -> None:
    for cell in (
        "`tests/core/test_gone.py`",
        "`tests/core/test_inside.py::test_gone`",
        "`tests/core/test_inside.py::TestGone::test_i1_a_copy_of_a_lease_is_not_trusted`",
        "`tests/contract -k test_gone`",
        "`make gone`",
    ):
        assert not is_there(cell), cell
