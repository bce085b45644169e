"""Reserved TCP ports, below the range that the kernel uses for outgoing connections."""

import random
import socket
from contextlib import suppress

LOOPBACK = "127.0.0.1"


def reserve_port() -> socket.socket:
    """Return a socket that reserves a port until it is closed. No other call, in any process, gets that port.

    The socket does not listen, so connections are refused until a server listens at the port. Linux lets a server bind
    the port if the server sets SO_REUSEADDR, as nearly all servers do. This function binds without SO_REUSEADDR, and so
    finds the port taken.
    """
    for port in random.sample(range(20_000, 32_000), 200):
        with suppress(OSError):
            return _bind(port, may_share=False)
    raise RuntimeError("no free port between 20000 and 32000")


def listen(port: int) -> socket.socket:
    """Listen at a reserved port."""
    sock = _bind(port, may_share=True)
    sock.listen(256)
    return sock


def _bind(port: int, *, may_share: bool) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, may_share)
        sock.bind((LOOPBACK, port))
        # from now on, other sockets with this option may bind it
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except BaseException:
        sock.close()
        raise
    return sock
