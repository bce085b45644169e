"""The README's Python runs.

The Python blocks of one ``##`` section are one script, run in an empty directory where any warning is an error. pytest
runs a script that defines tests.
"""

from pathlib import Path

import pytest

from tests.guides.documents import SECTIONS, blocks, check_script
from tests.support.scripts import run_python


def python_of(text: str) -> str:
    return "\n".join(block.text for block in blocks(text))


SCRIPTS = {title: script for title, text in SECTIONS.items() if (script := python_of(text))}


@pytest.mark.parametrize("title", SCRIPTS)
def test_the_python_of_each_section_runs(title: str, tmp_path: Path) -> None:
    check_script(SCRIPTS[title], tmp_path)


def test_these_sections_have_python() -> None:
    assert list(SCRIPTS) == ["(top)", "Quick start", "APScheduler", "Leader election", "Testing your code"]


def test_the_opening_prints_what_it_says_also_when_it_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "opening.py").write_text(SCRIPTS["(top)"])
    for printed in ("42 pages\nNone\n", "None\nNone\n"):
        done = run_python("opening.py", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")
