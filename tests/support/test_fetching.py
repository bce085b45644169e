"""The fetcher's cache holds complete sources only, is filled once, and says why a source is missing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import debian, fetching
from tests.support.fetching import SOURCES, MissingError, Source, cached, command, fetch, main
from tests.support.polling import wait_until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class FakeSource(Source):
    """Take time and note each attempt; fail while ``failing`` exists."""

    log: str
    failing: str = ""
    seconds: float = 0

    def fetch(self, directory: Path) -> None:
        (directory / "first").write_text("half of it")
        with Path(self.log).open("a") as log:
            log.write("fetched\n")
        time.sleep(self.seconds)
        if self.failing and Path(self.failing).exists():
            raise MissingError("the mirror has no such package")
        program = directory / "bin" / "program"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\necho started\n")
        program.chmod(0o755)

    def command(self, root: Path, program: str) -> list[str] | None:
        path = root / "bin" / program
        return [str(path)] if path.exists() else None


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Root's cache must be open to other users, and pytest's folders are not.
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CI", raising=False)
    return tmp_path / "log"


def leftovers() -> list[Path]:
    directory = fetching.cache_directory()
    return [path for path in directory.iterdir() if path.name.startswith(".") and path.suffix != ".lock"]


FETCH = """
import os, sys
os.geteuid = lambda: 1000
from tests.support import fetching
from tests.support.test_fetching import FakeSource
fetching.SOURCES["fake"] = FakeSource("Fake 1", *map(eval, sys.argv[1:]))
fetching.fetch("fake")
"""


def in_another_process(*arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", FETCH, *map(repr, arguments)]
    return subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)


@pytest.mark.not_quick("starts a Python")
def test_a_second_run_fetches_nothing(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "fake", FakeSource("Fake 1", str(log)))
    with pytest.raises(MissingError, match="Fake 1 is not fetched yet"):
        command("fake", "program")
    assert main(["fake"]) == main(["fake"]) == 0
    assert log.read_text() == "fetched\n"
    assert subprocess.run(command("fake", "program"), capture_output=True, check=True).stdout == b"started\n"
    with pytest.raises(MissingError, match="Fake 1 has no program other"):
        command("fake", "other")
    assert leftovers() == []


@pytest.mark.slow("starts Pythons")
def test_two_processes_at_once_fetch_once(log: Path) -> None:
    runs = [in_another_process(str(log), "", 0.5) for _ in range(2)]
    said = [run.communicate()[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    assert log.read_text() == "fetched\n"
    assert leftovers() == []


@pytest.mark.not_quick("starts a Python")
def test_a_killed_run_leaves_nothing_that_counts(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with in_another_process(str(log), "", 60) as run:
        wait_until(log.exists, timeout=60, what="the fetch under way")
        run.send_signal(signal.SIGKILL)
    source = FakeSource("Fake 1", str(log), "", 60)
    assert not cached(source).exists()
    assert len(leftovers()) == 1
    with in_another_process(str(log), "", 60) as run:  # it gets the dead process's lock, and removes its files
        wait_until(lambda: log.read_text().count("\n") == 2, timeout=60, what="the second fetch under way")
        assert len(leftovers()) == 1
        run.kill()


def test_what_cannot_be_had_says_why_until_it_can(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = tmp_path / "failing"
    failing.touch()
    source = FakeSource("Fake 1", str(log), str(failing))
    monkeypatch.setitem(SOURCES, "fake", source)
    monkeypatch.setattr(fetching, "needed", lambda: ["fake"])
    assert main([]) == 0, "make test goes on, and skips"
    assert main(["fake"]) == 1
    monkeypatch.setenv("CI", "1")
    assert main([]) == 1
    assert "Fake 1 cannot be had" in capsys.readouterr().err
    with pytest.raises(MissingError, match="Fake 1 cannot be had: the mirror has no such package"):
        command("fake", "program")
    assert leftovers() == []
    assert not cached(source).exists()
    failing.unlink()
    assert main([]) == 0
    assert command("fake", "program")


def test_another_source_of_the_same_name_is_another_folder(log: Path) -> None:
    assert cached(FakeSource("Fake 1", "a")) != cached(FakeSource("Fake 1", "b"))


def test_why_one_release_is_missing_says_nothing_about_the_next(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {"fake3.14": FakeSource("Fake 3.14", str(log), __file__), "fake3.15": FakeSource("Fake 3.15", str(log))}
    for name, source in sources.items():
        monkeypatch.setitem(SOURCES, name, source)
    assert main(["fake3.14"]) == 1
    with pytest.raises(MissingError, match=r"Fake 3\.15 is not fetched yet"):
        command("fake3.15", "program")
    assert main(["fake3.15"]) == 0
    with pytest.raises(MissingError, match=r"Fake 3\.14 cannot be had: the mirror has no such package"):
        command("fake3.14", "program")


def test_a_cache_that_cannot_be_written_says_so(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setitem(SOURCES, "fake", FakeSource("Fake 1", str(log)))
    assert main(["fake"]) == 1
    assert "cannot be written (Not a directory): set XDG_CACHE_HOME elsewhere" in capsys.readouterr().err


@pytest.mark.slow("starts Pythons")
def test_ctrl_c_ends_a_fetch_without_a_traceback(log: Path) -> None:
    script = FETCH.replace('fetch("fake")', 'main(["fake"])')
    words = [sys.executable, "-c", script, *map(repr, (str(log), "", 60))]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True) as run:
        wait_until(log.exists, timeout=60, what="the fetch under way")
        run.send_signal(signal.SIGINT)
        said = run.communicate()[1]
    assert "Traceback" not in said
    assert "interrupted" in said
    assert leftovers() == []


def test_a_cache_that_only_root_can_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(closed))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(MissingError, match=r"only root can enter .*: set XDG_CACHE_HOME elsewhere"):
        fetch("valkey")


# Debian


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "sources.list.d/debian.sources": "Types: deb\n# a comment\nURIs: http://mirror/debian\n"
                "Suites: bookworm\nComponents: main\nSigned-By: /usr/share/keyrings/a.gpg\n\n"
                "Types: deb\nURIs: http://mirror/debian-security\n"
            },
            ("http://mirror/debian", "[signed-by=/usr/share/keyrings/a.gpg] "),
        ),
        (
            {
                "sources.list": "# deb http://old/debian sid main\ndeb-src http://src/debian sid main\n"
                "deb [arch=amd64 signed-by=/k.gpg] http://mirror/debian/ trixie main\n"
            },
            ("http://mirror/debian/", "[signed-by=/k.gpg] "),
        ),
        (
            {
                "sources.list.d/a.sources": "Types: deb\nEnabled: no\nURIs: http://off/debian\nSuites: sid\n",
                "sources.list.d/b.list": "deb http://packages.example/apt stable main\n"
                "deb http://mirror/debian sid main\n",
            },
            ("http://mirror/debian", ""),
        ),
    ],
)
def test_the_mirror_is_that_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str], expected: tuple[str, str]
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(debian, "SYSTEM_SOURCES", tmp_path)
    assert debian.mirror() == expected  # `unpack` reads this without a network


def test_a_system_without_a_mirror_of_debian_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "SYSTEM_SOURCES", tmp_path)
    with pytest.raises(debian.AptError, match=r"name no mirror of Debian|no apt-get"):
        debian.unpack("sid", ["mysql-server-core"], tmp_path / "root")


def test_a_program_of_a_package_is_not_the_script_that_needs_the_python_of_the_fetch(tmp_path: Path) -> None:
    for folder, content in (("bin", b"#!/gone/bin/python\n"), ("package/programs", b"\x7fELF"), ("share", b"#!/x\n")):
        program = tmp_path / folder / "valkey"
        program.parent.mkdir(parents=True)
        program.write_bytes(content)
        program.chmod(0o755)
    (tmp_path / "package" / "valkey").mkdir()
    assert SOURCES["valkey"].command(tmp_path, "valkey") == [str(tmp_path / "package/programs/valkey")]


@pytest.mark.parametrize("libraries", ["usr/lib", "lib"])
def test_the_loader_looks_where_libraries_are_that_are_linked(tmp_path: Path, libraries: str) -> None:
    """Up to Debian 12, libc is in /lib and most libraries are in /usr/lib."""
    folders = [tmp_path / top / "x86_64-linux-gnu" for top in dict.fromkeys(("usr/lib", libraries))]
    loader = folders[-1] / "ld-linux-x86-64.so.2"
    for path in (loader, folders[0] / "libz.so.1", folders[0] / "gconv" / "UTF-16.so", folders[0] / "perl" / "B.so"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert debian.loader(tmp_path) == [str(loader), "--library-path", ":".join(map(str, folders))]


@pytest.mark.not_quick("starts a Python")
def test_apt_needs_no_right_to_write_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root could write everywhere, so apt-get runs as nobody. Without package lists it needs no network."""
    if shutil.which("apt-get") is None:
        pytest.skip("not Debian")
    monkeypatch.setattr(debian, "mirror", lambda: ("http://127.0.0.1:9/debian", ""))
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        apt = debian.apt_command(Path(place), "sid")
        as_nobody: dict[str, Any] = {}
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "nobody", place], check=True)
            as_nobody = {"user": "nobody", "extra_groups": []}
        command = [*apt, "install", "--download-only", "no-such-package"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **as_nobody)
    errors = [line for line in done.stderr.splitlines() if line.startswith("E:")]
    assert errors == ["E: Unable to locate package no-such-package"]


# Pythons


@pytest.mark.slow("starts another Python and a virtual environment")
@pytest.mark.parametrize("version", ["3.14", "3.15"])
def test_a_python_starts_itself_and_virtual_environments(version: str, tmp_path: Path) -> None:
    try:
        python = fetching.python(version)
    except MissingError as error:
        pytest.skip(f"{error}; run: make servers-all")
    script = "import sys, sqlite3, ssl, json; print(json.dumps([sys.version_info[:2], sys.prefix, sys.executable]))"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {script!r}], check=True)"
    environment = tmp_path / "venv"
    subprocess.run([python, "-m", "venv", "--without-pip", str(environment)], check=True)
    done = subprocess.run(
        [str(environment / "bin" / "python"), "-c", nested], capture_output=True, text=True, check=True
    )
    numbers, prefix, executable = json.loads(done.stdout)
    assert ".".join(map(str, numbers)) == version
    assert (prefix, executable) == (str(environment), str(environment / "bin" / "python"))


def test_the_running_python_is_installed() -> None:
    assert fetching.python(".".join(map(str, sys.version_info[:2]))) == sys.executable
    with pytest.raises(MissingError, match=r"Python 3\.1: not installed, and no source has it"):
        fetching.python("3.1")


# Servers that a run met


@pytest.mark.slow("runs pytest with two workers")
def test_a_run_writes_the_versions_that_it_met(tmp_path: Path) -> None:
    versions = tmp_path / "versions.json"
    (tmp_path / "conftest.py").write_text(
        "from tests.support import versions\n\n\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(versions)\n"
    )
    for name, product in (("test_a", "Redis"), ("test_b", "MySQL")):
        (tmp_path / f"{name}.py").write_text(
            f"from tests.support.versions import record\n\n\ndef test():\n    record({product!r}, '8.0')\n"
        )
    command = [sys.executable, "-m", "pytest", "-n2", "--dist=loadfile", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SHEDLOCK_TEST_VERSIONS": str(versions)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert json.loads(versions.read_text()) == {"MySQL": ["8.0"], "Redis": ["8.0"]}
    assert "servers of this run =" in done.stdout
    assert "\nMySQL 8.0\nRedis 8.0\n" in done.stdout
