"""The README is short and opens well, and the names in the documents exist. Its Python runs in ``tests/programs``."""

import re

import shedlock_py as sl
from tests.guides.documents import SECTIONS, blocks
from tests.support.scripts import PROJECT

README = (PROJECT / "README.md").read_text()
DOCUMENTS = [PROJECT / "README.md", PROJECT / "CHANGELOG.md", *sorted((PROJECT / "docs").rglob("*.md"))]


def test_the_readme_opens_with_a_sentence_a_picture_twelve_lines_and_two_commands() -> None:
    opening = SECTIONS["(top)"]
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


def test_the_documentation_opens_as_the_readme_does() -> None:
    page = (PROJECT / "docs" / "index.md").read_text()
    first, opening = (next(block.text for block in blocks(text)) for text in (page, SECTIONS["(top)"]))
    assert [line for line in first.splitlines() if line] == [line for line in opening.splitlines() if line]


def test_the_readme_has_200_lines_at_most() -> None:
    assert len(README.splitlines()) <= 200


ELSEWHERE = ("shedlock-java.md", "public-names.md")


def test_names_in_code_exist() -> None:
    """shedlock-java.md also has Java's names; public-names.md is generated from the code."""
    public = set(sl.__all__)
    begun = r"`((?:Lock|Lease|Provider|Task|Skipped|Executed|Configuration|NotLocked)\w*)\b(?!\.tla)"
    texts = {document.name: document.read_text() for document in DOCUMENTS if document.name not in ELSEWHERE}
    named = {(document, name) for document, text in texts.items() for name in re.findall(begun, text)}
    assert len(named) > 50
    assert {each for each in named if each[1] not in public and not each[1].endswith("Contract")} == set()


def test_environment_variables_are_those_of_docker_compose() -> None:
    exports = re.findall(r"^export SHEDLOCK_TEST_.*$", (PROJECT / "tests" / "README.md").read_text(), re.MULTILINE)
    compose = (PROJECT / "docker-compose.yml").read_text()
    assert len(exports) == 3
    for line in exports:
        assert line in compose


def test_the_configured_trust_of_ten_minutes() -> None:
    lease = sl.InMemoryLockProvider(clock=lambda: 1000.0).acquire(sl.LockRequest("nightly", "10m"))
    assert lease is not None
    minutes, seconds = divmod(lease.trusted_for().total_seconds(), 60)
    assert f"{minutes:.0f} min {seconds:.3f} s" in (PROJECT / "docs" / "durations.md").read_text()
