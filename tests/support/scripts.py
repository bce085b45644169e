"""Run a script as a new user would: in a new process, where any warning is an error.

One warning of Python 3.13 is ignored: an SQLite provider is still open at the end.
"""

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def run_python(*arguments: str, cwd: Path = PROJECT, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:unclosed database:ResourceWarning", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_example(name: str) -> list[str]:
    """Run an example that must succeed. Return the lines that it prints."""
    done = run_python(str(PROJECT / "examples" / name))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()
