"""The whole demo, as ``make demo`` runs it: with locks every promise is kept, without them it says which are not."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo import __main__ as demo
from tests.guides.examples.scripts import PROJECT, run_python
from tests.support.polling import wait_until
from tests.support.processes import descendants, is_running


def test_i3_i11_the_demo_keeps_every_promise() -> None:
    done = run_python("-m", "examples.demo", "--seconds", "3")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "was KILLED with SIGKILL in the middle of report" in done.stdout
    assert " took over " in done.stdout
    assert done.stdout.splitlines()[-1] == "Every promise was kept."


def test_without_locks_promises_are_broken() -> None:
    done = run_python("-m", "examples.demo", "--seconds", "3", "--no-lock")
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    assert "BROKEN PROMISES" in done.stdout
    assert "ran 3 times: on replica-1, replica-2, replica-3" in done.stdout


def test_a_store_that_cannot_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--store", "nosuch://host"]) == 2
    assert "unknown scheme 'nosuch'" in capsys.readouterr().err
    assert demo.main(["--store", "postgresql+psycopg://user:s3cret@127.0.0.1:1/db"]) == 2
    error = capsys.readouterr().err
    assert "127.0.0.1" in error
    assert "s3cret" not in error


@pytest.mark.parametrize("seconds", ["0", "-1", "3601", "nan", "soon"])
def test_seconds_that_cannot_work(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main([f"--seconds={seconds}"])
    assert "--seconds" in capsys.readouterr().err


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """A shell lets what it starts in the background ignore SIGINT, and children inherit that: CI may be run so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGKILL])
def test_no_replica_outlives_the_demo(with_signal: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.demo"],
        cwd=PROJECT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "is ready" not in process.stdout.readline():
        assert process.poll() is None
    replicas = descendants(process.pid)
    assert len(replicas) == 3
    process.send_signal(with_signal)
    _, error = process.communicate(timeout=20)
    wait_until(lambda: not any(map(is_running, replicas)), what="the replicas gone")
    if with_signal is signal.SIGINT:
        assert (process.returncode, error) == (130, "interrupted; all that was started is stopped\n")
        assert list(tmp_path.iterdir()) == []
