"""The README is true: its Python runs, the names in it exist. Its links: ``tests/guides/pages/test_site.py``.

The Python blocks of one ``##`` section are one script, run in an empty directory where any warning is an error; a
script that defines tests is given to pytest.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import shedlock_py as sl
from tests.guides.documents import blocks, check_script
from tests.guides.examples.scripts import PROJECT, run_python

README = (PROJECT / "README.md").read_text()
DOCUMENTS = [PROJECT / "README.md", PROJECT / "CHANGELOG.md", *sorted((PROJECT / "docs").rglob("*.md"))]


def sections() -> Iterator[tuple[str, str]]:
    """Title and text of each part that begins with a ``##`` heading; the first has no title."""
    title, lines, fenced = "(top)", list[str](), False
    for line in README.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("## ") and not fenced:
            yield title, "\n".join(lines)
            title, lines = line.removeprefix("## "), []
        lines.append(line)
    yield title, "\n".join(lines)


def python_of(text: str) -> str:
    return "\n".join(block.text for block in blocks(text))


SCRIPTS = {title: script for title, text in sections() if (script := python_of(text))}


@pytest.mark.parametrize("title", SCRIPTS)
def test_the_python_of_each_section_runs(title: str, tmp_path: Path) -> None:
    check_script(SCRIPTS[title], tmp_path)


def test_these_sections_have_python() -> None:
    assert list(SCRIPTS) == ["(top)", "Quick start", "APScheduler", "Leader election", "Testing your code"]


def test_it_opens_with_a_sentence_a_picture_twelve_lines_and_two_commands() -> None:
    opening = dict(sections())["(top)"]
    title, sentence, picture, *_ = opening.split("\n\n")
    assert title == "# shedlock_py"
    assert len(sentence) < 100
    assert picture.startswith("![")
    code = next(block.text for block in blocks(opening))
    assert len([line for line in code.splitlines() if line]) <= 12
    assert [line.split("  ")[0] for line in opening.splitlines() if line.startswith("make ")] == [
        "make demo",
        "make test",
    ]
    assert opening.index(picture) < opening.index(code) < opening.index("make demo")


def test_the_opening_prints_what_it_says_also_when_it_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "opening.py").write_text(SCRIPTS["(top)"])
    for printed in ("42 pages\nNone\n", "None\nNone\n"):
        done = run_python("opening.py", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_the_documentation_opens_as_it_does() -> None:
    page = (PROJECT / "docs" / "index.md").read_text()
    code = next(block.text for block in blocks(page))
    assert [line for line in code.splitlines() if line] == [line for line in SCRIPTS["(top)"].splitlines() if line]


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 200


def test_names_in_code_exist() -> None:
    """What the documents write as `name(…)` and the classes they name are public names of the library."""
    public = set(sl.__all__)
    for document in DOCUMENTS:
        if document.name == "shedlock-java.md":  # has Java's names as well
            continue
        for name in re.findall(
            r"`((?:Lock|Lease|Provider|Task|Skipped|Executed|Configuration|NotLocked)\w*)\b(?!\.tla)",
            document.read_text(),
        ):
            assert name in public or name.endswith("Contract"), f"{name} in {document.name}"


def test_environment_variables_are_those_of_docker_compose() -> None:
    exports = re.findall(r"^export SHEDLOCK_TEST_.*$", (PROJECT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    compose = (PROJECT / "docker-compose.yml").read_text()
    assert len(exports) == 3
    for line in exports:
        assert line in compose


def test_the_configured_trust_of_ten_minutes() -> None:
    lease = sl.InMemoryLockProvider(clock=lambda: 1000.0).acquire(sl.LockRequest("nightly", "10m"))
    assert lease is not None
    minutes, seconds = divmod(lease.trusted_for().total_seconds(), 60)
    assert f"{minutes:.0f} min {seconds:.3f} s" in (PROJECT / "docs" / "durations.md").read_text()
