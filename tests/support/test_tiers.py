"""The tests of each tier, and tests that use too much."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow("starts pytest several times")

TESTS = """
import time
import pytest

def test_quick(): ...

@pytest.mark.not_quick("starts a replica")
def test_replica(): ...

def test_of_a_server(redis_server): ...

@pytest.mark.parametrize("driver", ["one", pytest.param("other", marks=pytest.mark.matrix("the same fact"))])
def test_drivers(driver): ...

@pytest.mark.slow("a herd")
class TestHerd:
    def test(self): ...

    @pytest.mark.matrix("the same fact")
    def test_of_the_matrix(self): ...

@pytest.mark.not_quick("starts a replica")
@pytest.mark.slow("a herd")
def test_of_two_marks(): ...
"""
QUICK = {"test_quick", "test_drivers[one]"}
TEST = QUICK | {"test_replica", "test_of_a_server"}
FULL = TEST | {"TestHerd::test", "test_of_two_marks"}
ALL = FULL | {"test_drivers[other]", "TestHerd::test_of_the_matrix"}
EXPENSIVE = """
import time
import pytest

def burn():
    until = time.process_time() + 1.2
    while time.process_time() < until: ...

def test_expensive():
    burn()

@pytest.mark.slow("a herd")
def test_slow():
    burn()
"""


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(Path("tests/conftest.py").read_text())
    marks = "".join(f"    {mark}(why): of a tier\n" for mark in ("not_quick", "slow", "matrix"))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{marks}pythonpath = {Path.cwd()}")
    (tmp_path / "test_some.py").write_text(TESTS)
    return tmp_path


def pytest_in(tests: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(tests)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("tier", "expected"), [("quick", QUICK), ("test", TEST), ("full", FULL), ("all", ALL)])
def test_a_tier_leaves_out_what_a_mark_or_a_server_puts_into_a_higher_one(
    tests: Path, tier: str, expected: set[str]
) -> None:
    done = pytest_in(tests, "--collect-only", f"--tier={tier}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line} == expected


def test_a_mark_without_a_reason_is_an_error(tests: Path) -> None:
    (tests / "test_some.py").write_text("import pytest\n\n@pytest.mark.slow\ndef test_a(): ...\n")
    done = pytest_in(tests)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_some.py::test_a: a mark of a tier needs its reason" in done.stderr


def test_a_test_that_uses_more_than_a_cpu_second_fails_unless_it_is_slow(tests: Path) -> None:
    (tests / "test_some.py").write_text(EXPENSIVE)
    with (tests / "conftest.py").open("a") as conftest:
        conftest.write("\ncosts.MOST = 0.01\n")  # less than the test uses on any machine
    done = pytest_in(tests, "--tier=test")
    assert "1 passed, 1 deselected, 1 error" in done.stdout
    assert "ERROR at teardown of test_expensive" in done.stdout
    assert 'or mark it with pytest.mark.slow("why")' in done.stdout
