"""Signal handlers that raise, like the handlers of Celery, of a test's time limit, or of Ctrl-C."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

moments_are_known = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="`interrupted`: there the `with` of a lock calls a function in C, too"
)


class TooLong(Exception):
    """Like Celery's SoftTimeLimitExceeded."""


class Interrupted(BaseException):
    """Like KeyboardInterrupt from Ctrl-C, and SystemExit from a SIGTERM handler."""


@contextmanager
def raised_by(number: signal.Signals, error: type[BaseException]) -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        raise error

    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)


def interrupted(call: Callable[[], object], number: int) -> bool:
    """Raise at the ``number``-th moment when Python may run a signal handler in ``call``. Return whether it was raised.

    These moments are the beginnings of Python functions and the returns of C functions.
    """
    moments = iter(range(number))

    def handler(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_return") and next(moments, None) is None:
            raise Interrupted

    sys.setprofile(handler)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.setprofile(None)
    return False
