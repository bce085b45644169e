"""Temporary files of a test run, in memory: on a busy disk ``fsync`` takes longer than a provider's time limit.

``TMPDIR=/tmp make test`` leaves them on the disk. Faults and benchmarks, which are separate runs, always use the disk.
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
PREFIX = "shedlock-run-"


def use_memory() -> Callable[[], None]:
    """Set ``TMPDIR`` to a new directory in memory, for this process and its children.

    Do nothing if ``TMPDIR`` is already set, as in pytest's workers. Return the function that removes the directory.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < NEEDED:
        return lambda: None
    # fix multiprocessing's directory elsewhere: it removes that at exit, after `remove` has removed ours
    get_temp_dir()
    one_at_a_time = _lock(MEMORY, wait=True)
    _remove_stale()
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY))
    lock = _lock(directory)
    os.close(one_at_a_time)
    directory.chmod(0o1777)  # like /tmp: the servers' users write here too
    os.environ["TMPDIR"] = str(directory)
    tempfile.tempdir = None

    def remove() -> None:
        os.environ.pop("TMPDIR", None)
        tempfile.tempdir = None
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)

    return remove


def servers_directory() -> str:
    """Return the parent directory of private servers' directories.

    It is $TMPDIR only if this module has set it: system users must reach the directory, and the path of a Unix socket
    has at most 107 bytes.
    """
    temporary = Path(tempfile.gettempdir())
    return str(temporary) if temporary.parent == MEMORY and temporary.name.startswith(PREFIX) else "/tmp"


def _lock(directory: Path, *, wait: bool = False) -> int:
    """Lock it until the descriptor is closed or this process ends. :raises BlockingIOError: another process has the
    lock."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove_stale() -> None:
    """Remove directories of killed runs: the kernel has released their locks."""
    for directory in MEMORY.glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, another user's, or just removed
            lock = _lock(directory)
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)
