"""The former version of the package, in a child process: a replica that a rolling deploy has not replaced yet.

The former version is the last release before the checked-out commit. Its package comes from the clone's own history,
into a temporary folder, and :mod:`tests.support.former_server` runs it.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import shedlock_py
from shedlock_py import Lease, LockRecord
from shedlock_py.model.run import Run
from tests.support.former_server import decode, encode

PROJECT = Path(__file__).parents[2]
UNTIL_A_RELEASE = "e0e5365e6215d94e859acd1caf9da3d20e05fc15"
"""The former version as long as no release has a tag. Its parent still forgets the fire time of a key in use."""


class FormerError(RuntimeError):
    """The former version failed in a way that no provider should. The message has its traceback."""


def former_commit() -> str:
    """Return the tag of the last release before this commit, or :data:`UNTIL_A_RELEASE`."""
    described = _git("describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^")
    return described.stdout.decode().strip() if described.returncode == 0 else UNTIL_A_RELEASE


def unpack(commit: str, folder: Path) -> None:
    """Put the package of ``commit`` into ``folder``, as its wheel has it. Skip the test if no such commit is here."""
    clone = _git("rev-parse", "--show-toplevel")  # `make test-all` runs a copy of the tests in a folder of the clone
    if clone.returncode:
        pytest.skip("only a clone has the former version, in its history")
    if _git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
        pytest.skip(f"this clone has no former version ({commit[:12]}); run: git fetch --unshallow --tags")
    archive = _git("-C", clone.stdout.decode().strip(), "archive", "--format=tar", commit, "shedlock_py")
    archive.check_returncode()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as package:
        package.extractall(folder, filter="data")


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    trusted = ["-c", "safe.directory=*"]  # in a container, another user may own the clone
    return subprocess.run(["git", *trusted, *arguments], cwd=PROJECT, capture_output=True, check=False)


class FormerLease(Lease):
    """A lease that a provider of the former version acquired. The former version computes its trust."""

    def __init__(self, version: FormerVersion, number: int) -> None:
        self.number = number
        self._version = version

    def trusted_for(self) -> timedelta:
        found: timedelta = self._version.call(self.number, "trusted_for")
        return found

    def is_trusted(self) -> bool:
        found: bool = self._version.call(self.number, "is_trusted")
        return found

    def has_ended(self) -> bool:
        found: bool = self._version.call(self.number, "has_ended")
        return found


class FormerProvider:
    """A provider of the former version. It has all methods that this provider has there."""

    def __init__(self, version: FormerVersion, number: int) -> None:
        self._version = version
        self._number = number

    def __getattr__(self, method: str) -> Any:
        return partial(self._version.call, self._number, method)

    def run_once(self, key: str) -> bool:
        """Return whether ``run_once`` of the former version ran its task."""
        ran: bool = self._version.call(0, "run_once", self._number, key)
        return ran


class FormerVersion:
    """The child process. It carries out one operation at a time."""

    def __init__(self, folder: Path) -> None:
        # -P: the former version comes before the clone, in which the child finds tests.support.
        path = os.pathsep.join([str(folder), str(PROJECT)])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.former_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )
        self._one_at_a_time = threading.Lock()
        self._leases: dict[int, FormerLease] = {}
        assert self.call(0, "where") == str(folder), "the child has not imported the former version"

    def open(self, module: str, class_name: str, where: str, options: dict[str, Any]) -> FormerProvider:
        number = self.call(0, "open", module, class_name, where, list(options.items()))
        return FormerProvider(self, number)

    def call(self, on: int, method: str, *arguments: Any, **options: Any) -> Any:
        request = {
            "on": on,
            "method": method,
            "arguments": encode(arguments, _number),
            "options": {name: encode(value, _number) for name, value in options.items()},
        }
        reply = self._reply(json.dumps(request))
        if "error" in reply:
            kind = getattr(shedlock_py, reply["error"], FormerError)
            raise kind(reply["message"], **reply["options"])
        return decode(reply["result"], {"LockRecord": LockRecord, "Run": Run, "Lease": self._lease})

    def close(self) -> None:
        self._process.communicate()

    def _reply(self, line: str) -> dict[str, Any]:
        to_child, from_child = self._process.stdin, self._process.stdout
        assert to_child is not None
        assert from_child is not None
        with self._one_at_a_time:
            to_child.write(f"{line}\n")
            to_child.flush()
            reply = from_child.readline()
        if not reply:
            raise FormerError(f"the process of the former version ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(reply)
        return found

    def _lease(self, found: dict[str, Any]) -> FormerLease:
        """Return the one object of a lease. An extension changes its duration."""
        number = found.pop("number")
        lease = self._leases.setdefault(number, FormerLease(self, number))
        vars(lease).update({name: decode(value, {}) for name, value in found.items()})
        return lease


def _number(lease: Lease) -> int:
    assert isinstance(lease, FormerLease), "a lease stays with the version that acquired it"
    return lease.number


@contextmanager
def former_version(folder: Path) -> Iterator[FormerVersion]:
    """Run the former version during the block, unpacked into ``folder``. Skip the test in a shallow clone."""
    unpack(former_commit(), folder)
    version = FormerVersion(folder)
    try:
        yield version
    finally:
        version.close()
