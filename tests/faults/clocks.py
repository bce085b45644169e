"""Wall clocks that tests set while processes run with them. The monotonic clocks stay as they are.

A server gets a :class:`ServerClock`, a worker a :class:`WorkerClock`: whatever is started with its ``environment``
sees it. Both show the machine's time until they are set.
"""

from __future__ import annotations

import atexit
import glob
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Self

from tests.support.availability import missing
from tests.support.processes import is_running

LIBFAKETIME = "/usr/lib/*/faketime/libfaketimeMT.so.1"  # MT: the one for programs with threads
LEFTOVERS = ("faketime_shm_", "sem.faketime_sem_")
"""Files of libfaketime in /dev/shm, named after a process, which do not go away with it."""


def offset_to(moment: datetime) -> float:
    """With this offset, a clock shows this moment, which is aware, now. For clocks that shall agree, ask once."""
    return moment.timestamp() - time.time()


class Clock(ABC):
    def __init__(self) -> None:
        # Not in $TMPDIR: the servers' system users must get there.
        self._directory = Path(tempfile.mkdtemp(prefix="shedlock-clock-", dir="/tmp"))
        self._directory.chmod(0o755)
        self.environment: dict[str, str] = {}
        self.offset = 0.0
        """Seconds that it is ahead of the machine's clock."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set(self, offset: float) -> None:
        """From now on it is ``offset`` seconds ahead of the machine's clock; behind, if negative."""
        self._set(offset)
        self.offset = offset

    def close(self) -> None:
        """When the processes that it was for have ended."""
        shutil.rmtree(self._directory)

    @abstractmethod
    def _set(self, offset: float) -> None: ...


class ServerClock(Clock):
    """By ``shim.c``: for programs that libfaketime cannot run, such as Debian's redis-server."""

    def __init__(self) -> None:
        super().__init__()
        path = self._directory / "offset"
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._nanoseconds = mmap.mmap(file.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(compiled("shim.c")), "SHEDLOCK_CLOCK": str(path)}

    def close(self) -> None:
        self._nanoseconds.close()
        super().close()

    def _set(self, offset: float) -> None:
        # One store of eight bytes: nobody reads half of it.
        memoryview(self._nanoseconds).cast("q")[0] = round(offset * 1e9)


class WorkerClock(Clock):
    """By libfaketime, Debian's package."""

    def __init__(self) -> None:
        super().__init__()
        self._path = self._directory / "offset"
        self._set(0.0)
        self.environment = {
            "LD_PRELOAD": f"{compiled('nanosleep.c')}:{_libfaketime()}",
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def close(self) -> None:
        for leftover in Path("/dev/shm").glob("*faketime_*"):
            prefix, pid = leftover.name.rstrip("0123456789"), leftover.name.lstrip("abcdefghijklmnopqrstuvwxyz._")
            if prefix in LEFTOVERS and not is_running(int(pid)):
                leftover.unlink(missing_ok=True)
        super().close()

    def _set(self, offset: float) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(f"{offset:+.6f}\n")
        new.replace(self._path)


@cache
def _libfaketime() -> str:
    found = glob.glob(LIBFAKETIME)
    if not found:
        missing("libfaketime: not installed", "make servers")
    return found[0]


@cache
def compiled(source: str) -> Path:
    """The shared library made of a source file that is beside this one; removed when the tests end."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        missing("a C compiler: not installed", "make servers")
    path = _library_directory() / f"{source}.so"
    options = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *options, "-o", str(path), str(Path(__file__).with_name(source)), "-ldl"], check=True)
    path.chmod(0o755)
    return path


@cache
def _library_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="shedlock-shims-", dir="/tmp"))
    directory.chmod(0o755)
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child runs our exit handlers, too, if it ends in sys.exit()
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory
