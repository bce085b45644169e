"""Forked processes."""

import gc
import os
import signal
import traceback
import warnings
from collections.abc import Callable


def in_child(work: Callable[[], object]) -> None:
    """Run `work` in a forked process; fail with its traceback."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork while other threads run
        pid = os.fork()
    if pid == 0:
        failure = b""
        signal.alarm(60)
        try:
            work()
            gc.collect()
        except BaseException:
            failure = traceback.format_exc().encode()
        os.write(writing, failure)
        os._exit(0)  # as a worker that is killed: nobody closes anything in order
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        failure = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert not failure, failure.decode()
    assert status == 0, "the child hung"
