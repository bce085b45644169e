"""Temporary files of a run are in memory, and are removed at its end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import memory

# Print the directory, then wait for the parent
RUN = """
import pathlib, sys, tempfile
from tests.support import memory
memory.MEMORY = pathlib.Path(sys.argv[1])
remove = memory.use_memory()
print(tempfile.mkdtemp(), flush=True)
sys.stdin.read()
remove()
"""


def run(place: Path) -> "subprocess.Popen[str]":
    clean = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean
    )


def directory_of(process: "subprocess.Popen[str]", place: Path) -> Path:
    assert process.stdout is not None
    directory = Path(process.stdout.readline().rstrip()).parent
    assert directory.parent == place
    assert directory.name.startswith(memory.PREFIX)
    return directory


@pytest.mark.not_quick("starts a Python")
def test_a_run_removes_its_directory_and_those_of_killed_runs_only(tmp_path: Path) -> None:
    with run(tmp_path) as killed, run(tmp_path) as living:
        left, kept = directory_of(killed, tmp_path), directory_of(living, tmp_path)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.exists()
        with run(tmp_path) as other:
            own = directory_of(other, tmp_path)
            assert (left.exists(), kept.exists(), own.exists()) == (False, True, True)
    assert (living.returncode, other.returncode) == (0, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("needed", "temporary"), [(1 << 60, None), (0, "/var/tmp")])
def test_it_stays_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, needed: int, temporary: str | None
) -> None:
    """Not enough memory is free, or ``TMPDIR`` names another place."""
    monkeypatch.setattr(memory, "MEMORY", tmp_path)
    monkeypatch.setattr(memory, "NEEDED", needed)
    monkeypatch.delenv("TMPDIR", raising=False)
    if temporary is not None:
        monkeypatch.setenv("TMPDIR", temporary)
    memory.use_memory()()
    assert os.environ.get("TMPDIR") == temporary
    assert list(tmp_path.iterdir()) == []
