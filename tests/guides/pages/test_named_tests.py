"""The tests that docs/reliability.md names for the faults that were found exist, and so do files that pages name."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from shedlock_py.testing import contract
from tests.exhaustive.mutants import MUTANTS
from tests.faults.test_scenarios import NAMES
from tests.support.scripts import PROJECT

PAGES = [*sorted((PROJECT / "docs").rglob("*.md")), *PROJECT.glob("*.md"), PROJECT / "tests" / "README.md"]
RELIABILITY = (PROJECT / "docs" / "reliability.md").read_text()
SECTION = RELIABILITY.partition("## Found by attack")[2].partition("\n## ")[0]
CELLS = re.findall(r"^\|[^|]+\|[^|]+\|([^|]+)\|$", SECTION, re.MULTILINE)
ROWS = [row for row in CELLS[2:] if "No test" not in row]
FILES = [*(PROJECT / "tests").rglob("*.py"), *Path(contract.__file__).parent.glob("*.py")]


@cache
def defined_in(file: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^ *(?:async )?(?:def|class) (\w+)", file.read_text(), re.MULTILINE))


def files_named(text: str) -> dict[str, list[Path]]:
    """The files of tests that a text names, each by the end of its path."""
    names = re.findall(r"[\w/]*\w\.py\b", text)
    return {name: [file for file in FILES if file.as_posix().endswith(f"/{name}")] for name in names}


def missing(row: str) -> list[str]:
    """Names of a row that do not exist. A name may be cut off: ``test_i1_nor_…``, ``…_on_a_minority``."""
    named = files_named(row)
    defined = {name for files in named.values() for file in files for name in defined_in(file)}
    lost = [name for name, files in named.items() if not files]
    for name in re.findall(r"(?<![\w/…])(?:test_|Test|…_?\w)[\w…*]*(?!\w*[/.])", row.replace("::", " ")):
        if not any(re.fullmatch(re.sub(r"[…*]", r"\\w*", name), other) for other in defined):
            lost.append(name)
    scenarios = list(NAMES.values())
    lost += [name for name in re.findall(r'scenario "([^"]+)"', row) if not any(name in other for other in scenarios)]
    return lost + [name for name in re.findall(r'mutant "([^"]+)"', row) if name not in MUTANTS]


def test_the_tests_that_hold_what_was_found_are_there() -> None:
    assert len(ROWS) > 80
    assert {row.strip(): lost for row in ROWS if (lost := missing(row))} == {}


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
    wrong = {name for page, name, target in links if name not in defined_in((page.parent / target).resolve())}
    assert wrong == set()


def test_a_name_that_does_not_exist_is_found() -> None:
    for row in (
        "`tests/faults/model/test_model.py`",
        "`tests/core/test_inside.py::test_gone`",
        "`test_inside.py::TestGone::test_i1_…`",
        "`test_inside.py`, `…_which_is_gone`",
        'scenario "gone" (`tests/faults/test_scenarios.py`)',
        'search: the mutant "gone"',
    ):
        assert missing(row), row
