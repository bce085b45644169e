"""Reserved TCP ports for tests, so that no other test process takes a port while its server is stopped."""

import atexit
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from shedlock_py.testing.ports import LOOPBACK, reserve_port

__all__ = ["LOOPBACK", "black_hole", "free_port", "reserve_port"]


def free_port() -> int:
    """Return a port that is ours until this process ends. It refuses connections unless one of our servers listens."""
    reserved = reserve_port()
    atexit.register(reserved.close)
    port: int = reserved.getsockname()[1]
    return port


@contextmanager
def black_hole() -> Iterator[tuple[str, int]]:
    """Yield an address that neither accepts nor refuses connections: the listener's queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(reserve_port())
        listener.listen(0)
        with suppress(TimeoutError):
            while True:
                waiting = stack.enter_context(socket.socket())
                waiting.settimeout(0.5)
                waiting.connect(listener.getsockname())
        yield listener.getsockname()
