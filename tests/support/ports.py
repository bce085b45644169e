"""TCP ports of the tests: reserved, so that no other test process takes one while its server is stopped."""

import atexit
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from shedlock_py.testing.ports import LOOPBACK, reserve_port

__all__ = ["LOOPBACK", "black_hole", "free_port", "reserve_port"]


def free_port() -> int:
    """A port that is ours until this process ends. It refuses connections while none of our servers listens there."""
    reserved = reserve_port()
    atexit.register(reserved.close)
    port: int = reserved.getsockname()[1]
    return port


@contextmanager
def black_hole() -> Iterator[tuple[str, int]]:
    """An address that neither accepts nor refuses connections: the listener's queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(reserve_port())
        listener.listen(0)
        with suppress(TimeoutError):
            while True:
                waiting = stack.enter_context(socket.socket())
                waiting.settimeout(0.5)
                waiting.connect(listener.getsockname())
        yield listener.getsockname()
