"""The built wheel, a copy of the tests without the package, and virtual environments that have the wheel."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from tests.matrix.rows import Row
from tests.support import fetching

PROJECT = Path(__file__).parents[2]
BUILD = PROJECT / "build" / "matrix"
TREE = BUILD / "tree"
"""The clone without the package: a test that runs here can only import the wheel."""
ENVIRONMENTS = PROJECT / ".venv-matrix"
PACKAGE = "shedlock_py"
PAGE = "docs/tested-with.md"
RESULTS = "tests/matrix/last_runs/"
"""The rows' last results. They are committed, so that rows may run on several days or machines."""
SERVERS = ("SecantusDB",)
"""Servers that pip installs. They run on the interpreter of `.venv` in every row."""
PACKAGED = (f"{PACKAGE}/", "pyproject.toml", "README.md", "LICENSE")


UNREACHABLE = re.compile(r"WARNING: Retrying|ReadTimeoutError|No space left on device|Permission denied")
"""pip's messages when it could not fetch or write a package that may exist."""


class SetupError(RuntimeError):
    """The wheel or a row's environment cannot be made. The message has the end of the command's output."""


def files() -> list[str]:
    """Return the present files of the clone, committed or not."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = _run(*command, cwd=PROJECT).split("\0")
    return sorted(name for name in set(names) if name and (PROJECT / name).is_file())


def digest(*prefixes: str) -> str:
    """Return a hash of the files, without the files that ``make test-all`` writes."""
    found = hashlib.sha256()
    for name in files():
        if not name.startswith((PAGE, RESULTS)) and name.startswith(prefixes or ("",)):
            found.update(f"{name}\0".encode() + (PROJECT / name).read_bytes())
    return found.hexdigest()


def commit() -> str | None:
    """Return the checked-out commit, or ``None`` if the clone has uncommitted changes."""
    others = (f":!{PAGE}", f":!{RESULTS}")
    if _run("git", "status", "--porcelain", "--", ".", *others, cwd=PROJECT):
        return None
    return _run("git", "rev-parse", "--short=8", "HEAD", cwd=PROJECT).strip()


def copy_tests() -> None:
    shutil.rmtree(TREE, ignore_errors=True)
    for name in files():
        if not name.startswith(f"{PACKAGE}/"):
            target = TREE / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, target)


def build_wheel() -> Path:
    """Build the wheel from the present files. Its folder is named after their hash."""
    folder = BUILD / f"wheel-{digest(*PACKAGED)[:12]}"
    if not list(folder.glob("*.whl")):
        _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={folder}", str(PROJECT))
    (built,) = folder.glob("*.whl")
    return built


@dataclass
class Environment:
    """A virtual environment, made again when a requirement changes.

    :ivar left_out: requirements that pip could not install here, with pip's reasons.
    """

    row: Row
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return ENVIRONMENTS / self.row.environment

    @property
    def python(self) -> str:
        return str(self.directory / "bin" / "python")

    def make(self, wheel: Path) -> None:
        """Create the environment unless it exists, and install the wheel.

        :raises MissingError: the interpreter is missing.
        :raises SetupError: pip cannot install the wheel, or has no network.
        """
        interpreter = _interpreter(self.row.python)
        stamp = self.directory / "matrix.json"
        wanted = {"python": _output(interpreter, "-VV"), "requirements": self._requirements() + self._built()}
        made = json.loads(stamp.read_text()) if stamp.exists() else {}
        if made.get("wanted") == wanted:
            self.left_out = made["left_out"]
        else:
            shutil.rmtree(self.directory, ignore_errors=True)
            _run(interpreter, "-m", "venv", "--without-pip", str(self.directory))
            self._install_requirements()
            stamp.write_text(json.dumps({"wanted": wanted, "left_out": self.left_out}))
        self._pip("--no-deps", "--force-reinstall", str(wheel))
        where = Path(_output(self.python, "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)", cwd=TREE))
        if not where.is_relative_to(self.directory):
            raise SetupError(f"the tests would import {where}, which is not the wheel")

    def versions(self) -> dict[str, str]:
        """Return the versions of the interpreter and of installed packages, by lower-case names."""
        script = (
            "import importlib.metadata as m, json, platform; "
            "found = {'python': platform.python_version()} | {d.name.lower(): d.version for d in m.distributions()}; "
            "print(json.dumps(found))"
        )
        found: dict[str, str] = json.loads(_output(self.python, "-c", script))
        return found

    def _requirements(self) -> list[str]:
        project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
        extras = project["project"]["optional-dependencies"]
        optional = [item for items in extras.values() for item in items if not item.startswith("shedlock_py[")]
        tools = [item for item in group("test-full", project["dependency-groups"]) if not item.startswith(SERVERS)]
        return [*optional, *tools, *self.row.packages]

    def _built(self) -> list[str]:
        """Return the requirements that pip builds from source."""
        groups = tomllib.loads((PROJECT / "pyproject.toml").read_text())["dependency-groups"]
        return [] if self.row.floors else group("test-native", groups)

    def _install_requirements(self) -> None:
        requirements, constraint = self._requirements(), []
        if self.row.floors:
            floors = self.directory / "floors.txt"
            floors.write_text(_output(sys.executable, "-m", "scripts.floors", cwd=PROJECT))
            constraint = ["--constraint", str(floors)]
        one_by_one = self._built()
        try:
            self._pip(*constraint, *requirements)
        except SetupError as error:
            _raise_if_unreachable(error)
            one_by_one += requirements  # pip cannot install one of them on this interpreter: find out which
        for requirement in one_by_one:
            try:
                self._pip(*constraint, *self.row.packages, requirement)
            except SetupError as error:
                _raise_if_unreachable(error)
                reasons = re.findall(r"fatal error: .*|(?m:^ERROR: .*)", str(error))
                self.left_out[requirement] = f"pip has no wheel and cannot build it ({(reasons or [str(error)])[0]})"

    def _pip(self, *arguments: str) -> None:
        """Run this process's pip on the environment: an unpacked interpreter lacks pip."""
        quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-warn-script-location")
        _run(sys.executable, "-m", "pip", "--python", self.python, "install", *quiet, *arguments)


def _interpreter(version: str) -> str:
    """Return an installed or cached interpreter, or fetch it now: `make servers` brings no Pythons."""
    try:
        return fetching.python(version)
    except fetching.MissingError:
        if (name := f"python{version}") not in fetching.SOURCES:
            raise
        fetching.fetch(name)
        return fetching.python(version)


def _raise_if_unreachable(error: SetupError) -> None:
    """Raise a network error again. A requirement left out because of it would stay left out."""
    if UNREACHABLE.search(str(error)):
        raise error


def group(name: str, groups: dict[str, list[str | dict[str, str]]]) -> list[str]:
    """Return a dependency group's requirements, with included groups."""
    found: list[str] = []
    for item in groups[name]:
        found += [item] if isinstance(item, str) else group(item["include-group"], groups)
    return found


def _output(*command: str, cwd: Path | None = None) -> str:
    return _run(*command, cwd=cwd).strip()


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode:
        errors = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise SetupError("\n".join(errors[-200:]) or f"{command[0]} ended with {done.returncode}")
    return done.stdout
