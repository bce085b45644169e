"""Tools of the release check: fetched into their own environment, and run with a log for each step."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
BUILD = PROJECT / "build" / "release"
DIST = BUILD / "dist"
TOOLS = PROJECT / ".venv-release"


class FailedError(RuntimeError):
    """A step failed. The message has the reason, then the fix."""

    def __init__(self, reason: str, cure: str) -> None:
        super().__init__(reason)
        self.cure = cure


def pyproject() -> dict[str, Any]:
    return tomllib.loads((PROJECT / "pyproject.toml").read_text())


def run(step: str, *command: str | Path, cure: str, cwd: Path = PROJECT, **variables: str) -> str:
    """Run a tool, save its output in the step's log, and return it. :raises FailedError: it failed."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    log = BUILD / f"{step}.log"
    with log.open("a") as file:
        file.write(f"$ {' '.join(map(str, command))}\n{done.stdout}\n")
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        raise FailedError(f"{lines[-1] if lines else 'no output'} (all of it: {log.relative_to(PROJECT)})", cure)
    return done.stdout


def tool(step: str, package: str) -> Path:
    """Return a Python that has a tool of the dependency group ``release``; fetch the tool if it is missing."""
    (requirement,) = [
        item for item in pyproject()["dependency-groups"]["release"] if re.match(rf"{re.escape(package)}\b(?!-)", item)
    ]
    interpreter = TOOLS / "bin" / "python"
    if not interpreter.exists():
        run(step, sys.executable, "-m", "venv", "--without-pip", TOOLS, cure="see the log")
    install(step, interpreter, requirement)
    return interpreter


def install(step: str, interpreter: Path, *requirements: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-warn-script-location")
    cure = "pip needs a network, or an index that has the package"
    run(step, sys.executable, "-m", "pip", "--python", interpreter, "install", *quiet, *requirements, cure=cure)


def wheel() -> Path:
    found = list(DIST.glob("*.whl"))
    if not found:
        raise FailedError("there is no wheel", "run the step 'build' first")
    return found[0]


def contents(path: Path) -> dict[str, int]:
    """Return names and checksums of the files in a wheel."""
    with zipfile.ZipFile(path) as archive:
        return {info.filename: info.CRC for info in archive.infolist()}
