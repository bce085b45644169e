"""Several files agree about a release, and ``make release-check`` finds differences."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from scripts.release.__main__ import steps
from scripts.release.distributions import allowed
from scripts.release.texts import ADDRESSED, READ, address, disagreements, is_placeholder, set_address
from shedlock_py import __version__
from tests.guides.documents import README
from tests.support.scripts import PROJECT

TESTS, RELEASE = ".github/workflows/tests.yml", ".github/workflows/release.yml"
HERE = address(PROJECT)
HOST = HERE.rpartition("/")[0]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the files that a release check compares."""
    for name in READ:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, target)
        else:
            shutil.copy(PROJECT / name, target)
    return tmp_path


def test_the_files_say_the_same_about_a_release() -> None:
    assert disagreements(PROJECT) == []


@pytest.mark.parametrize(
    ("name", "pattern", "replacement", "words"),
    [
        ("CHANGELOG.md", rf"\[{re.escape(__version__)}\] - .*", f"[{__version__}] - unreleased", "has no section"),
        ("CITATION.cff", r"(?m)^version: .*", "version: 0.0.1", "does not say 'version: "),
        ("CITATION.cff", r"(?m)^date-released: .*", "date-released: 2020-01-01", "does not say 'date-released: "),
        ("pyproject.toml", r'requires-python = ">=3\.\d+"', 'requires-python = ">=3.9"', "requires-python names"),
        ("docs/policy.md", r"3\.15", "3.16", "docs/policy.md names Python .*3.16"),
        ("tests/matrix/rows.py", r'Row\("python-3\.13"', 'Row("other"', "rows.py names Python 3.11, 3.12, 3.14"),
        (TESTS, r', "3\.15"', "", "tests.yml names Python"),
        (TESTS, r"checkout@[0-9a-f]+ # v[\d.]+", "checkout@v7", "tests.yml uses actions/checkout@v7"),
        (TESTS, r"checkout@[0-9a-f]{40}", f"checkout@{'0' * 40}", "pin actions/checkout to 2 commits"),
        ("SECURITY.md", re.escape(HERE), "https://example.com", "SECURITY.md does not have the address"),
        ("pyproject.toml", re.escape(HERE) + "/raw", f"{HOST}/other/raw", "pyproject.toml .*another"),
    ],
)  # fmt: skip
def test_a_fault_is_named(clone: Path, name: str, pattern: str, replacement: str, words: str) -> None:
    text = (clone / name).read_text()
    (clone / name).write_text(broken := re.sub(pattern, replacement, text, count=1))
    assert broken != text
    assert any(re.search(words, fault) for fault in disagreements(clone)), disagreements(clone)


def test_the_policy_supports_the_servers_of_the_readme() -> None:
    servers = re.findall(r"[A-Z]\w+ ≥ [\d.]*\d", "\n".join(re.findall(r"^\|.*", README.read_text(), re.MULTILINE)))
    assert len(servers) >= 4
    policy = (PROJECT / "docs" / "policy.md").read_text()
    assert [server for server in servers if server not in policy] == []


def test_a_tag_is_that_of_the_version_and_leaves_nothing_unreleased(clone: Path) -> None:
    changelog = clone / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## [Unreleased]\n", "## [Unreleased]\n\n- news\n"))
    assert disagreements(clone) == []
    assert disagreements(clone, "v9.9.9") == [
        f"the tag is v9.9.9, but the version is {__version__}",
        "CHANGELOG.md has entries under [Unreleased]",
    ]


def test_the_address_of_the_project_is_set_everywhere_at_once(clone: Path) -> None:
    assert set_address(clone, "https://code.example/somebody/shedlock_py/") == list(ADDRESSED)
    assert address(clone) == "https://code.example/somebody/shedlock_py"
    assert not is_placeholder(address(clone))
    assert disagreements(clone) == []
    assert not any(HERE in (clone / name).read_text() for name in ADDRESSED)


def test_no_other_file_has_the_placeholder() -> None:
    """Otherwise it would stay there."""
    texts = [*PROJECT.glob("*.*"), *(PROJECT / "docs").rglob("*.md"), *(PROJECT / ".github").rglob("*.*")]
    having = {
        str(path.relative_to(PROJECT))
        for path in texts
        if path.is_file() and b"project-url.invalid" in path.read_bytes()
    }
    assert having == (set(ADDRESSED) if is_placeholder(HERE) else set())


def test_the_readme_on_pypi_has_no_relative_links() -> None:
    tools = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]
    text = README.read_text()
    for rule in tools["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    before, after = (re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", page) for page in (README.read_text(), text))
    assert len(before) == len(after) > 30
    for (picture, target), (_, link) in zip(before, after, strict=True):
        kind = "raw" if picture else "blob"
        assert link == (target if target.startswith("https:") else f"{HERE}/{kind}/v$HFPR_VERSION/{target}")


@pytest.mark.parametrize(
    ("declared", "verdict"),
    [
        (["MIT"], True),
        (["Apache-2.0 OR GPL-3.0-only"], True),
        (["MIT AND (PSF-2.0)"], True),
        (["Mozilla Public License 2.0 (MPL 2.0)", "MPL-2.0"], True),
        (["MIT AND GPL-3.0-only"], False),
        (["MIT", "GPL-3.0-only"], False),
        ([], False),
    ],
)
def test_a_package_needs_a_licence_that_is_allowed(declared: list[str], verdict: bool) -> None:
    assert allowed(declared) is verdict


def test_the_page_of_a_release_names_the_tools_of_the_release_check() -> None:
    page = (PROJECT / "scripts" / "release" / "README.md").read_text()
    tools = {step.what.split()[0].strip(",") for step in steps(1, None)} & {"zizmor", "actionlint", "twine", "mypy"}
    assert len(tools) == 4
    assert {tool for tool in tools if tool not in page} == set()
