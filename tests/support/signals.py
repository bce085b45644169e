"""Signal handlers that raise, as those of Celery, of a test's time limit, or of Ctrl-C."""

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
    """As Celery's SoftTimeLimitExceeded."""


class Interrupted(BaseException):
    """As KeyboardInterrupt, of Ctrl-C, and SystemExit, of a SIGTERM handler."""


@contextmanager
def raised_by(number: signal.Signals, error: type[BaseException]) -> Iterator[None]:
    """While in the block, the signal's handler raises ``error``."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise error

    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)


def interrupted(call: Callable[[], object], number: int) -> bool:
    """Whether ``call`` raised at the ``number``-th moment at which Python may run a signal handler in it.

    Those are the beginnings of its functions, and the returns of functions in C.
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
