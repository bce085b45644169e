"""Temporary files of a test run, in memory: a busy disk lets ``fsync`` wait for longer than a provider's time limit.

``TMPDIR=/tmp make test`` leaves them on the disk. Faults and benchmarks, which are runs of their own, always do.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.util import get_temp_dir
from pathlib import Path

MEMORY = Path("/dev/shm")
NEEDED = 4 << 30
"""Bytes that must be free."""
PREFIX = "shedlock-run-"


def use_memory() -> Callable[[], None]:
    """Set ``TMPDIR`` to a new directory in memory, for this process and those that it starts.

    Nothing happens if ``TMPDIR`` is set, as it is in pytest's workers. Returns the function that removes the directory.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < NEEDED:
        return lambda: None
    get_temp_dir()  # multiprocessing removes its own at exit, after `remove` has removed ours: it must be elsewhere
    one_at_a_time = _lock(MEMORY, wait=True)
    _remove_stale()
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY))
    lock = _lock(directory)
    os.close(one_at_a_time)
    directory.chmod(0o1777)  # as /tmp: for the users of the servers, too
    os.environ["TMPDIR"] = str(directory)
    tempfile.tempdir = None

    def remove() -> None:
        os.environ.pop("TMPDIR", None)
        tempfile.tempdir = None
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)

    return remove


def servers_directory() -> str:
    """Where the directories of private servers are made.

    No other $TMPDIR than ours: the system user must get there, and the path of a Unix socket has at most 107 bytes.
    """
    temporary = Path(tempfile.gettempdir())
    return str(temporary) if temporary.parent == MEMORY and temporary.name.startswith(PREFIX) else "/tmp"


def _lock(directory: Path, *, wait: bool = False) -> int:
    """Lock it until the descriptor is closed, or this process ends. :raises BlockingIOError: another one has it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove_stale() -> None:
    """Remove what runs left that were killed: the kernel has released their locks."""
    for directory in MEMORY.glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, of another user, or just removed
            lock = _lock(directory)
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)
