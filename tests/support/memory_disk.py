"""The directories of the tests and of their servers are in memory, if there is room: no deadline waits for a slow disk.

`make faults` and `make bench` do not use this: their servers write to the disk.
"""

import os
import shutil

MEMORY = "/dev/shm"
ROOM = 4 * 2**30
"""Bytes. Four processes with servers of their own take about half of it."""
DIRECTORY = "SHEDLOCK_TEST_DIRECTORY"
"""The variable that says where private servers have their directories; ``/tmp`` without it."""


def use_memory() -> None:
    """For this process and its children, unless the environment says otherwise."""
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ.setdefault(DIRECTORY, MEMORY)
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)  # of tmp_path; documented by pytest
