"""Free TCP ports below the range from which the kernel takes the ports of outgoing connections."""

import random
import socket

LOOPBACK = "127.0.0.1"


def bind_free_port() -> socket.socket:
    """A bound socket that does not listen yet."""
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
