"""Forked processes for tests."""

from __future__ import annotations

import gc
import os
import signal
import traceback
import warnings
from collections.abc import Callable

import pytest

_SECONDS = 60


def python_fork() -> int:
    """Call ``os.fork()`` without the warning about other threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def in_child(work: Callable[[], object], fork: Callable[[], int] = python_fork) -> None:
    """Run ``work`` in a forked process and fail with its traceback. Skip the test on systems without ``fork``."""
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork()")
    reading, writing = os.pipe()
    pid = fork()
    if pid == 0:
        failure = b""
        signal.alarm(_SECONDS)
        try:
            work()
            gc.collect()
        except BaseException:
            failure = traceback.format_exc().encode()
        os.write(writing, failure)
        os._exit(0)  # end like a killed worker: close nothing
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        failure = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert not failure, failure.decode()
    assert status == 0, "the child hung"
