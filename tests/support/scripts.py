"""Running a script as a new user would: in a process of its own, where any warning is an error.

But for one of Python 3.13, about a provider on SQLite that is still open at the end.
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
    """The lines that an example prints, once it has ended well."""
    done = run_python(str(PROJECT / "examples" / name))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()
