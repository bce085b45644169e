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
[GUARDED] = [block.text for block in blocks(PAGE) if block.title == "report.py"]
SHORT, LONG = (
    re.sub(r"^@.*\n", block.text, GUARDED, flags=re.MULTILINE) for block in blocks(PAGE) if "excerpt" in block.title
)
"""The program with the other decorators of the page."""
THREE_PAGES = "".join(f"process N writes page {page}\n" for page in (1, 2, 3))
SKIPPED = "skipped: held\n"


def save(directory: Path, program: str, *, page: float = 0.5, at_most: str = "15s") -> None:
    """Into the file that the reader changes in each section, with other durations."""
    script = program.replace("time.sleep(1)", f"time.sleep({page})").replace("15s", at_most)
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


def test_the_page_has_one_program_and_two_changes_of_it() -> None:
    assert len(blocks(PAGE)) == len({GUARDED, SHORT, LONG}) == 3
    assert 'lock_at_least_for="10s"' in SHORT
    assert "keep_alive=True" in LONG


def test_1_guarded_it_runs_once(tmp_path: Path) -> None:
    save(tmp_path, GUARDED)
    with first_terminal(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)  # this machine may start the other process slowly
        assert second_terminal(tmp_path) == SKIPPED
        process.send_signal(signal.SIGCONT)
        rest, _ = process.communicate(timeout=30)
        assert rest.count("writes page") == 2
    assert second_terminal(tmp_path) == THREE_PAGES


def test_2_a_killed_holder_is_followed(tmp_path: Path) -> None:
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


def test_3_a_short_job_runs_once(tmp_path: Path) -> None:
    save(tmp_path, SHORT.replace('"10s"', '"15s"'), page=0)
    assert second_terminal(tmp_path) == THREE_PAGES
    assert second_terminal(tmp_path) == SKIPPED
    save(tmp_path, GUARDED, page=0)
    (tmp_path / "locks.db").unlink()
    assert second_terminal(tmp_path) == second_terminal(tmp_path) == THREE_PAGES


def test_4_a_long_job_keeps_a_short_lock(tmp_path: Path) -> None:
    save(tmp_path, LONG, page=2)
    with first_terminal(tmp_path) as process:
        assert process.stdout is not None
        for page in (2, 3):
            assert process.stdout.readline() == f"process {process.pid} writes page {page}\n"
        # By now, a lock without keep-alive would be over. The test does not start a process: its start may take too
        # long.
        with closing(SqlAlchemyLockProvider(f"sqlite:///{tmp_path}/locks.db")) as provider:
            assert record_of(provider, "nightly-report").is_held
        assert process.wait(30) == 0
    # Of the other one first_line() read the first line, and killed it.
    wait_until(lambda: "writes page 1" in first_line(tmp_path), timeout=30)
