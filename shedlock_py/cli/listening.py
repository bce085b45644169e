"""The listening socket of ``shedlock page``, and of the health checks of ``shedlock lead``."""

from __future__ import annotations

import errno
import os
import socket

from shedlock_py.cli.common import UNAVAILABLE, fail


def listening(host: str, port: int, option: str) -> socket.socket:
    """Return a socket that listens at ``host``; exit if that fails.

    A name with IPv4 and IPv6 addresses is bound on IPv4. "::" means all addresses of both families.

    :param option: the option of the port, for the message.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        is_dual = address[0] == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, dualstack_ipv6=is_dual)
    except OSError as error:
        is_unknown_name = isinstance(error, socket.gaierror)
        # create_server() adds the address to its error text
        reason = error.strerror if is_unknown_name else os.strerror(error.errno or 0)
        cure = f"; another {option} may be free" if error.errno == errno.EADDRINUSE else ""
        fail(f"cannot listen on {host} port {port}: {reason}{cure}", UNAVAILABLE)
    except UnicodeError:  # the codec "idna" refuses a label that is empty or too long
        fail(f"cannot listen on {host} port {port}: this is not a host name", UNAVAILABLE)
