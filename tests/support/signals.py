"""Signal handlers that raise, as those of Celery, of a test's time limit, or of Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
