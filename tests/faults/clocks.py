"""Wall clocks that tests set while processes run. The monotonic clocks stay as they are.

A server or worker that is started with the ``environment`` of a :class:`Clock` sees that clock. The clock shows the
machine's time until it is set.
"""

from __future__ import annotations

import atexit
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Self

from tests.support.availability import missing


def offset_to(moment: datetime) -> float:
    """Return the offset of a clock that shows this aware ``moment`` now. Call it once for clocks that must agree."""
    return moment.timestamp() - time.time()


class Clock:
    """A clock that ``shim.c`` sets: libfaketime cannot run Debian's redis-server."""

    def __init__(self) -> None:
        self.offset = 0.0
        """Seconds that it is ahead of the machine's clock."""
        # Not in $TMPDIR: the servers' system users must be able to read it.
        self._directory = Path(tempfile.mkdtemp(prefix="shedlock-clock-", dir="/tmp"))
        self._directory.chmod(0o755)
        path = self._directory / "offset"
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._nanoseconds = mmap.mmap(file.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(compiled("shim.c")), "SHEDLOCK_CLOCK": str(path)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._nanoseconds.close()
        shutil.rmtree(self._directory)

    def set(self, offset: float) -> None:
        """Set the clock ``offset`` seconds ahead of the machine's clock, or behind it if negative."""
        # One store of eight bytes: no process reads half of it.
        memoryview(self._nanoseconds).cast("q")[0] = round(offset * 1e9)
        self.offset = offset


@cache
def compiled(source: str) -> Path:
    """Compile a source file beside this module to a shared library, which is removed when the tests end."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        missing("a C compiler: not installed", "make servers")
    directory = Path(tempfile.mkdtemp(prefix="shedlock-shims-", dir="/tmp"))
    directory.chmod(0o755)
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child runs these exit handlers, too, if it ends in sys.exit()
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    path = directory / f"{source}.so"
    options = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *options, "-o", str(path), str(Path(__file__).with_name(source)), "-ldl"], check=True)
    path.chmod(0o755)
    return path
