"""What `make test` leaves to `make test-all`."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest
from shedlock_py.testing.contract import ExclusionContract, HoldTimesContract, StallingStoreContract

@pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgresql+psycopg2", "mysql+aiomysql", "sqlite"])
def test_drivers(driver): ...

@pytest.mark.parametrize("driver", ["mysql+pymysql", "mysql+aiomysql"])
def test_that_is_async_on_one_driver_only(driver): ...

@pytest.mark.parametrize("driver, by_url", [("mysql+pymysql", False), ("mysql+mysqldb", True)])
def test_that_is_by_url_on_one_driver_only(driver, by_url): ...

@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("size", [3, 5])
def test_quorums(size, kind): ...

@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("size", [3])
def test_a_small_quorum(size, kind): ...

@pytest.mark.matrix
class TestMarked:
    def test(self): ...

@pytest.mark.programs
@pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgresql+asyncpg", "postgresql+psycopg2", "mysql+asyncmy"])
def test_programs(driver): ...

@pytest.mark.programs
@pytest.mark.parametrize("kind", ["url", "async url", "async alone"])
def test_programs_by_kind(kind): ...

@pytest.mark.programs
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("size", [3, 5])
def test_programs_of_quorums(size, kind): ...

class Contract:
    test_what_a_program_decides = HoldTimesContract.test_an_extension_keeps_the_lock_and_its_record
    test_when_trust_begins = StallingStoreContract.test_i6_trust_counts_from_the_question_not_from_the_answer
    test_what_a_client_does = ExclusionContract.test_i1_a_second_lock_is_refused

class TestSync(Contract): ...

class TestAsync(Contract):
    programs_in = TestSync

class TestOfTheOnlyOne(Contract):
    programs_in = TestMarked
"""
LEFT_OUT = {"test_drivers[postgresql+psycopg2]", "test_quorums[3-async]", "test_quorums[5-sync]", "TestMarked::test"}
LEFT_OUT |= {"TestAsync::test_what_a_program_decides", "test_programs_by_kind[async url]"}
LEFT_OUT |= {"test_programs[postgresql+asyncpg]", "test_programs[postgresql+psycopg2]"}
LEFT_OUT |= {f"test_programs_of_quorums[{variant}]" for variant in ("3-sync", "3-async", "5-async")}


def collected(directory: Path, *options: str) -> set[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        *options,
        str(directory),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.slow("runs pytest")
def test_what_another_variant_shows_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(Path("tests/conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = matrix\n programs\npythonpath = " + str(Path.cwd()))
    (tmp_path / "test_some.py").write_text(TESTS)
    everything = collected(tmp_path, "--tier=all")
    assert len(everything) == 35
    assert everything - collected(tmp_path) == LEFT_OUT
