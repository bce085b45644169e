"""docs/tutorial.md, step by step: its programs in two processes, and their output.

Only its durations are shorter here.
"""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.testing.contract.base import record_of
from tests.guides.documents import DOCS, blocks
from tests.support.polling import wait_until
from tests.support.scripts import run_python

PAGE = (DOCS / "tutorial.md").read_text()
PROGRAMS = [block.text for block in blocks(PAGE) if block.title == "report.py"]
UNGUARDED, GUARDED, SHORT, LONG = range(4)
THREE_PAGES = "".join(f"process N writes page {page}\n" for page in (1, 2, 3))
SKIPPED = "skipped: held\n"


def save(directory: Path, program: int, *, page: float = 0.5, at_most: str = "15s") -> None:
    """Save the program with shorter durations in the file that the reader replaces in each section."""
    script = PROGRAMS[program].replace("time.sleep(1)", f"time.sleep({page})").replace("15s", at_most)
    (directory / "report.py").write_text(script)


@contextmanager
def first_terminal(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the program there, and wait until it has begun to write."""
    command = [sys.executable, "-W", "error", "report.py"]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"process {process.pid} writes page 1\n"
            yield process
        finally:
            process.kill()


def second_terminal(directory: Path, *command: str) -> str:
    done = run_python(*(command or ("report.py",)), cwd=directory)
    assert (done.returncode, done.stderr) == (0, "")
    return re.sub(r"process \d+", "process N", done.stdout)


def first_line(directory: Path) -> str:
    """Return the second terminal's first line, without waiting for its end."""
    command = [sys.executable, "-W", "error", "report.py"]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    return line


def test_the_page_has_four_programs_and_no_other_python() -> None:
    assert len(PROGRAMS) == len(blocks(PAGE)) == 4


def test_1_unguarded_it_runs_twice(tmp_path: Path) -> None:
    save(tmp_path, UNGUARDED)
    with first_terminal(tmp_path) as process:
        assert second_terminal(tmp_path) == THREE_PAGES
        rest, _ = process.communicate(timeout=30)
        assert rest.count("writes page") == 2


def test_2_guarded_it_runs_once(tmp_path: Path) -> None:
    save(tmp_path, GUARDED)
    with first_terminal(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)  # this machine may start the other process slowly
        assert second_terminal(tmp_path) == SKIPPED
        process.send_signal(signal.SIGCONT)
        rest, _ = process.communicate(timeout=30)
        assert rest.count("writes page") == 2
    assert second_terminal(tmp_path) == THREE_PAGES


def test_3_a_killed_holder_is_followed(tmp_path: Path) -> None:
    save(tmp_path, GUARDED, at_most="10s")
    with first_terminal(tmp_path) as process:
        process.kill()
        process.wait()
    assert second_terminal(tmp_path) == SKIPPED
    shown = second_terminal(tmp_path, "-m", "shedlock_py", *command_of_the_page())
    assert "nightly-report" in shown
    assert str(process.pid) in shown
    wait_until(lambda: "writes page 1" in first_line(tmp_path), timeout=30)


def command_of_the_page() -> list[str]:
    command = next(block.text for block in blocks(PAGE, "sh") if block.text.startswith("shedlock "))
    return command.split()[1:]


def test_4_a_short_job_runs_once(tmp_path: Path) -> None:
    (tmp_path / "report.py").write_text(PROGRAMS[SHORT].replace('"5s"', '"15s"'))
    assert second_terminal(tmp_path) == "process N writes all pages\n"
    assert second_terminal(tmp_path) == SKIPPED
    (tmp_path / "report.py").write_text(PROGRAMS[SHORT].replace(', lock_at_least_for="5s"', ""))
    (tmp_path / "locks.db").unlink()
    assert second_terminal(tmp_path) == second_terminal(tmp_path) == "process N writes all pages\n"


def test_5_a_long_job_keeps_a_short_lock(tmp_path: Path) -> None:
    save(tmp_path, LONG, page=1)
    with first_terminal(tmp_path) as process:
        assert process.stdout is not None
        for page in range(2, 7):
            assert process.stdout.readline() == f"process {process.pid} writes page {page}\n"
        # By now, a lock without keep-alive would be over. The test does not start a process: its start may take too
        # long.
        with closing(SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/locks.db")) as provider:
            assert record_of(provider, "nightly-report").is_held
        rest, _ = process.communicate(timeout=30)
        assert rest.count("writes page") == 2
    # first_line() reads one line of the other process, and kills it.
    wait_until(lambda: "writes page 1" in first_line(tmp_path), timeout=30)
