"""Free TCP ports, below the range from which the kernel takes the ports of outgoing connections."""

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

LOOPBACK = "127.0.0.1"


def bind_free_port() -> socket.socket:
    for port in random.sample(range(20_000, 32_000), 200):
        try:
            return bind(port)
        except OSError:
            continue
    raise RuntimeError("no free port between 20000 and 32000")


def bind(port: int) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((LOOPBACK, port))
    except BaseException:
        sock.close()
        raise
    return sock


def free_port() -> int:
    """A port that was free a moment ago: whoever uses it must be ready to try another one."""
    with bind_free_port() as sock:
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def black_hole() -> Iterator[tuple[str, int]]:
    """An address that neither accepts nor refuses connections: the listener's queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(bind_free_port())
        listener.listen(0)
        with suppress(TimeoutError):
            while True:
                waiting = stack.enter_context(socket.socket())
                waiting.settimeout(0.5)
                waiting.connect(listener.getsockname())
        yield listener.getsockname()
