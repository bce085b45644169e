"""The runner of ``make test-all``: its input, its output, and a plan that names only existing tests."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.matrix import environments, report, results
from tests.matrix.__main__ import chosen
from tests.matrix.environments import PACKAGED, PAGE, PROJECT, RESULTS, Environment, SetupError, commit, digest, files
from tests.matrix.results import Result
from tests.matrix.rows import ROWS, Row
from tests.support.fetching import MissingError
from tests.support.polling import wait_until
from tests.support.processes import is_running

TESTS = """
import pytest

@pytest.fixture
def ends_badly():
    yield
    raise RuntimeError("in its teardown")

def test_passes(): pass

def test_fails(): raise ValueError

def test_fails_twice(ends_badly): raise ValueError

def test_has_an_error(ends_badly): pass

@pytest.mark.parametrize("number", range(3))
def test_is_skipped(number): pytest.skip("no server")
"""


def result(**values: object) -> Result:
    return Result("", "abc12345", "2026-11-26", **values)  # type: ignore[arg-type]  # of Result's own fields


@pytest.mark.slow("runs pytest")
def test_a_report_is_counted(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=report.xml", "test_it.py"]
    assert subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, check=False).returncode == 1
    found = result()
    found.read_report(tmp_path / "report.xml")
    assert found.failed == ["test_it::test_fails", "test_it::test_fails_twice", "test_it::test_has_an_error"]
    assert (found.passed, found.skipped, found.is_green, found.failures) == (1, {"no server": 3}, False, 3)


def test_trouble_counts_as_a_failure_and_a_row_that_was_not_tried_does_not() -> None:
    crashed, not_tried, passed = (
        result(trouble="ended with status 3"),
        result(trouble="no", tried=False),
        result(passed=7),
    )
    assert [found.is_green for found in (crashed, not_tried, passed)] == [False, False, True]
    assert report.counts({"a": crashed, "b": not_tried, "c": passed}) == (7, 1)


def test_the_page_says_what_ran_and_what_did_not(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    contract = {
        "test_postgresql.TestPsycopg2": 190,
        "test_postgresql.TestPsycopg2UsersEngine": 10,
        "test_memory.TestIt": 5,
    }
    found = result(
        passed=205, contract=contract, servers={"PostgreSQL": ["18.1"]}, versions={"psycopg2-binary": "2.9.13"},
        skipped={"no server": 3}, left_out={"gevent": "no wheel"},
    )  # fmt: skip
    report.write_page(
        report.page(
            {ROWS[0].name: found, ROWS[1].name: result(trouble="no Python 9.9", tried=False), ROWS[2].name: None}
        ),
        page,
    )
    text = page.read_text()
    assert text.startswith("before\n<!--")
    assert text.endswith("-->\nafter\n")
    assert "old" not in text
    for part in (
        f"2 rows, run on 2026-11-26: 0 minutes. **205 passed, 0 failed.** Not run yet: `{ROWS[2].name}`.",
        "| PostgreSQL 18.1 | abc12345 | 205 | 0 | 3 |",
        "| PostgreSQL 18.1 | psycopg2-binary 2.9.13 | sync | 200 |",
        f"- `{ROWS[0].name}`: gevent: no wheel",
        f"- `{ROWS[0].name}`: 3 tests skipped: no server",
        f"- `{ROWS[1].name}`: the row: no Python 9.9",
    ):
        assert part in text, text


def test_every_part_of_the_contract_has_its_clients() -> None:
    assert report.CLIENTS.keys() == report.SERVERS.keys()
    ours = {path.stem for path in (PROJECT / "tests" / "contract").glob("test_*.py")}
    others = {"test_memory", "test_sqlite", "test_django", "test_two_versions"}
    assert ours - report.CLIENTS.keys() == others, "without a server, without a separate client, or on several stores"


DRIVERS = {"psycopg2": "psycopg2-binary", "psycopg_async": "psycopg", "pymysql": "PyMySQL", "mysqldb": "mysqlclient"}
"""Package names by the driver names in URLs, where they differ."""


@pytest.mark.parametrize("module", report.CLIENTS)
def test_each_class_of_the_contract_is_counted_for_its_client(module: str) -> None:
    classes = [
        each for name, each in vars(import_module(f"tests.contract.{module}")).items() if name.startswith("Test")
    ]
    assert classes
    for each in classes:
        client = report.client_of(module, each.__name__)
        if driver := getattr(each, "driver", "").partition("+")[2]:
            assert client == DRIVERS.get(driver, driver), each.__name__


def test_the_rows_name_tests_that_are_there() -> None:
    words = [word.removeprefix("--deselect=") for row in ROWS for word in (*row.tests, *row.command)]
    paths = {word.partition("::")[0] for word in words if word.startswith("tests/")}
    assert len(paths) > 10
    assert [path for path in paths if not (PROJECT / path).exists()] == []


@pytest.mark.slow("collects tests in a process")
@pytest.mark.parametrize(
    "row", [row for row in ROWS if any("::" in word for word in row.tests)], ids=lambda row: row.name
)
def test_a_row_collects_each_class_that_it_names(row: Row) -> None:
    """Without ``--tier=all``, pytest would find no class of the matrix, and fail."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", *row.tests]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_no_two_rows_have_one_name_and_rows_of_one_environment_the_same_packages() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    wanted = {row.environment: (row.python, row.packages, row.floors) for row in ROWS}
    assert all(wanted[row.environment] == (row.python, row.packages, row.floors) for row in ROWS)


def test_every_python_that_is_advertised_is_tried() -> None:
    tried = {f'"Programming Language :: Python :: {row.python}"' for row in ROWS}
    project = (PROJECT / "pyproject.toml").read_text()
    advertised = {line.strip().rstrip(",") for line in project.splitlines() if ":: Python :: 3." in line}
    assert advertised <= tried
    assert len(advertised) >= 3


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"Python 3\.99: not installed"):
        Environment(Row("never", "", "3.99")).make(tmp_path)


def test_tests_that_are_named_take_the_place_of_those_of_the_row() -> None:
    row = Row("newest", "", tests=("tests", "--tier=all"))
    assert chosen(row, ["-n", "2", "-x"]) == ["tests", "--tier=all"]
    assert chosen(row, ["-n", "2", "tests/cli", "-x"]) == ["--tier=all"]
    assert chosen(Row("part", "", tests=("tests/core/test_guard.py", "-k", "sync")), ["tests/cli"]) == ["-k", "sync"]


@pytest.mark.slow("runs pip")
@pytest.mark.skipif(find_spec("pip") is None, reason="the environments that `make test-all` makes have no pip")
def test_no_requirement_is_left_out_because_the_network_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    for variable in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(variable, raising=False)
    environment = Environment(Row("offline", "", "{}.{}".format(*sys.version_info)))
    with pytest.raises(SetupError, match="Retrying"):
        environment.make(tmp_path)
    assert environment.left_out == {}
    assert not (environment.directory / "matrix.json").exists(), "the next run tries again"


@pytest.mark.skipif(not (PROJECT / ".git").exists(), reason="git lists the files of a clone; this is a copy")
def test_the_files_of_the_clone_are_known() -> None:
    assert {"pyproject.toml", "tests/matrix/rows.py", "shedlock_py/guard/functions.py"} <= set(files())
    assert digest(*PACKAGED) not in (digest(), digest("pyproject.toml"))


def test_a_commit_is_named_if_only_the_records_of_runs_differ_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(environments, "PROJECT", tmp_path)
    for name in ("code.py", PAGE):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "all")
    head, state = git("rev-parse", "--short=8", "HEAD"), digest()

    (tmp_path / PAGE).write_text("two")
    (tmp_path / RESULTS).mkdir(parents=True)
    (tmp_path / RESULTS / "row.json").write_text("{}")
    assert (commit(), digest()) == (head, state)
    (tmp_path / "code.py").write_text("two")
    assert commit() is None
    assert digest() != state


def test_what_is_saved_is_loaded_without_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "PROJECT", tmp_path)
    assert results.load("row") is None
    results.save("row", result(passed=7, trouble=f"{Path.home()}/x is not there"))
    assert results.load("row") == result(passed=7, trouble="~/x is not there")


STOPPED = """
import os, sys
from pathlib import Path
from tests.matrix import __main__ as runner

runner.BUILD = runner.TREE = Path(sys.argv.pop())
runner.REPORT_EVERY = 0.0
command = ["sh", "-c", "sleep 100 & echo $!; wait"]
runner.run_all = lambda rows, options: runner._follow(command, os.environ, runner.BUILD / "log", "row")
sys.exit(runner.main())
"""


def test_whoever_terminates_the_runner_ends_the_programs_of_the_row(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", STOPPED, str(tmp_path)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout
        assert "row" in runner.stdout.readline(), "it follows the program, which may have written before"
        wait_until(lambda: log.read_text().endswith("\n"))
        runner.terminate()
        assert runner.wait(30) == 130
    wait_until(lambda: not is_running(int(log.read_text())))


MISSING = """
import pytest

@pytest.mark.parametrize("driver", ["mysql+no_such_driver", "sqlite+sqlite3", "sqlite"])
def test_it(driver): pass

class TestContract:
    driver = "mysql+no_such_driver"
    def test_it(self): raise ValueError
"""


@pytest.mark.slow("runs pytest")
def test_a_driver_that_cannot_be_imported_skips_its_tests(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((PROJECT / "tests" / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers = matrix\npythonpath = {PROJECT}")
    (tmp_path / "test_it.py").write_text(MISSING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=report.xml", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    found = result()
    found.read_report(tmp_path / "report.xml")
    assert found.passed == 2
    assert found.skipped == {"no driver no_such_driver: No module named 'no_such_driver'": 2}
