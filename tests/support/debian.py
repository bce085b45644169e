"""Debian packages of another suite, unpacked into a folder: apt with a private configuration, and no installation.

The mirror and its keys come from the system's apt sources. Neither root nor the system's package lists are needed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

SYSTEM_SOURCES = Path("/etc/apt")
UNUSED = ("doc", "info", "locale", "man", "perl")  # folders of usr/share


class AptError(RuntimeError):
    """apt cannot provide the package; the message has apt's reason."""


def unpack(suite: str, packages: Sequence[str], target: Path) -> None:
    """Unpack packages and all their dependencies into an empty folder. Show progress on standard error."""
    package = " and ".join(packages)
    if missing := [program for program in ("apt-get", "dpkg") if shutil.which(program) is None]:
        raise AptError(f"{package} comes from Debian {suite}, and there is no {' and no '.join(missing)} here")
    work = target / ".apt"
    apt = apt_command(work, suite)
    _run([*apt, "update"], f"cannot read the package list of Debian {suite}")
    install = [*apt, "install", *packages]
    uris = _run([*install, "--print-uris"], f"Debian {suite} has no {package}")
    sizes = {name: int(size) for name, size in re.findall(r"(?m)^'\S+' (\S+) (\d+) ", uris)}
    archives = work / "cache" / "archives"
    _download([*install, "--download-only"], archives, sum(sizes.values()))
    for name in sizes:
        _run(["dpkg", "-x", str(archives / name), str(target)], f"cannot unpack {name}")
    shutil.rmtree(work)
    for name in UNUSED:
        shutil.rmtree(target / "usr" / "share" / name, ignore_errors=True)


@cache
def loader(root: Path) -> list[str]:
    """Return the words before a program of an unpacked suite: its dynamic loader and its library folders."""
    folders = [path for top in ("usr/lib", "lib") for path in sorted(root.glob(f"{top}/*-linux-gnu*")) if path.is_dir()]
    (program, *_) = [path for folder in folders for path in sorted(folder.glob("ld-linux-*.so.*"))]
    return [str(program), "--library-path", ":".join(map(str, folders))]


def apt_command(work: Path, suite: str) -> list[str]:
    """Return apt-get with its own lists, archives and (empty) status."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    uri, options = mirror()
    (work / "sources.list").write_text(f"deb {options}{uri} {suite} main\n")
    settings = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferences": "-",
        "Dir::Etc::preferencesparts": "-",
        "Dir::State": work / "state",
        "Dir::State::status": work / "status",  # apt also puts its lock beside this file
        "Dir::Cache": work / "cache",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",  # the user "_apt" may not be allowed to write here
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    config = work / "apt.conf"
    config.write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    return ["apt-get", "-c", str(config), "-q", "-q", "-y"]


def mirror() -> tuple[str, str]:
    """Return the address of the system's Debian mirror, and ``[signed-by=…]`` if its sources have that."""
    for uri, suites, signed_by in _sources():
        if uri.rstrip("/").endswith("/debian") and not any("security" in suite for suite in suites):
            return uri, f"[signed-by={signed_by}] " if signed_by else ""
    raise AptError(
        f"the apt sources in {SYSTEM_SOURCES} name no mirror of Debian: add one, or choose a server that "
        "is installed (tests/README.md)"
    )


def _sources() -> Iterator[tuple[str, list[str], str]]:
    """Yield URI, suites and key of each entry, in either of apt's two formats."""
    for path in sorted(SYSTEM_SOURCES.glob("sources.list.d/*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            fields = {key.lower(): value.strip() for key, value in re.findall(r"(?m)^([\w-]+):(.*)$", stanza)}
            if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes") != "no":
                signed_by = fields.get("signed-by", "")
                for uri in fields.get("uris", "").split():
                    yield uri, fields.get("suites", "").split(), signed_by
    for path in [SYSTEM_SOURCES / "sources.list", *sorted(SYSTEM_SOURCES.glob("sources.list.d/*.list"))]:
        for options, uri, suite in re.findall(r"(?m)^deb\s+(\[[^]]*\]\s+)?(\S+)\s+(\S+)", _text(path)):
            signed_by = "".join(re.findall(r"signed-by=([^\s\]]+)", options))
            yield uri, [suite], signed_by


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _download(command: list[str], archives: Path, total: int) -> None:
    """Run apt-get and show its progress on a terminal."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        while True:
            try:
                status = process.wait(0.2 if sys.stderr.isatty() else None)
                break
            except subprocess.TimeoutExpired:
                done = sum(path.stat().st_size for path in archives.rglob("*.deb"))
                print(f"\r    {done / 1e6:.0f} of {total / 1e6:.0f} MB", end="", file=sys.stderr, flush=True)
            except BaseException:
                process.kill()
                process.wait()
                raise
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        if status:
            output.seek(0)
            raise AptError(f"cannot download: {_reason(output.read())}")


def _run(command: list[str], problem: str) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    # Without a network, apt-get update succeeds with a warning.
    if done.returncode or (command[-1] == "update" and re.search(r"(?m)^[EW]: ", done.stderr)):
        raise AptError(f"{problem}: {_reason(done.stderr)}")
    return done.stdout


def _reason(output: str) -> str:
    found = re.search(r"(?m)^[EW]: (.*)", output)
    return found[1] if found else (output.strip().splitlines() or ["no reason given"])[-1]
