"""README is short, and what it shows is real. The names in the documents exist.

The Python of README runs in ``tests/programs``.
"""

import re
from itertools import pairwise

import shedlock_py as sl
from tests.guides.documents import DOCS, SECTIONS, blocks
from tests.support.scripts import PROJECT, run_python

README = (PROJECT / "README.md").read_text()
DOCUMENTS = [PROJECT / "README.md", PROJECT / "CHANGELOG.md", *sorted((PROJECT / "docs").rglob("*.md"))]


def test_the_readme_opens_with_a_sentence_a_picture_and_twelve_lines() -> None:
    opening = SECTIONS["(top)"]
    title, sentence, picture, code, *_ = opening.split("\n\n")
    assert title == "# shedlock_py"
    assert len(sentence) < 100
    assert picture.startswith("![")
    assert code.startswith("```python")
    (block,) = blocks(opening)
    assert len([line for line in block.text.splitlines() if line]) <= 12


def test_the_readme_has_700_words_at_most() -> None:
    assert len(README.split()) <= 700


def test_the_sections_come_in_the_order_of_a_reader() -> None:
    order = [
        "Install",
        "Four tasks",
        "APScheduler",
        "Two durations",
        "What it is not",
        "Links",
        "Working on it",
    ]
    assert list(SECTIONS) == ["(top)", *order]
    commands = [README.index(command) for command in ("make demo", "make test")]
    assert all(before < after for before, after in pairwise([README.index("## Working on it"), *commands]))


def test_the_table_is_the_one_that_shedlock_creates() -> None:
    (table,) = blocks(SECTIONS["Install"], "sql")
    done = run_python("-m", "shedlock_py", "schema", "--store", "postgresql://user@db/app")
    assert (done.returncode, done.stdout) == (0, table.text)


def test_llms_txt_has_the_program_of_the_readme_and_five_links() -> None:
    page = DOCS / "llms.txt"
    text = page.read_text()
    assert len(text.splitlines()) <= 60
    assert [block.text for block in blocks(text)] == [block.text for block in blocks(SECTIONS["(top)"])]
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == 5
    assert [link for link in links if not (DOCS / link).is_file()] == []


ELSEWHERE = ("shedlock-java.md", "public-names.md")


def test_names_in_code_exist() -> None:
    """shedlock-java.md also has Java's names; public-names.md is generated from the code."""
    public = set(sl.__all__)
    begun = r"`((?:Lock|Lease|Provider|Task|Skipped|Executed|Configuration|NotLocked)\w*)\b(?!\.tla)"
    texts = {document.name: document.read_text() for document in DOCUMENTS if document.name not in ELSEWHERE}
    named = {(document, name) for document, text in texts.items() for name in re.findall(begun, text)}
    assert len(named) > 30
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
