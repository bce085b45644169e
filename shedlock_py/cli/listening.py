"""Where ``shedlock page`` and the health checks of ``shedlock lead`` listen."""

from __future__ import annotations

import errno
import os
import socket

from shedlock_py.cli.common import UNAVAILABLE, fail


def listening(host: str, port: int, option: str) -> socket.socket:
    """A socket that listens at ``host``; exits if there can be none.

    A name with addresses of both families is bound on IPv4. "::" is all addresses of both.

    :param option: of the port, for the message.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        is_dual = address[0] == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, dualstack_ipv6=is_dual)
    except OSError as error:
        is_unknown_name = isinstance(error, socket.gaierror)
        # create_server() has added the address to its text
        reason = error.strerror if is_unknown_name else os.strerror(error.errno or 0)
        cure = f"; another {option} may be free" if error.errno == errno.EADDRINUSE else ""
        fail(f"cannot listen on {host} port {port}: {reason}{cure}", UNAVAILABLE)
    except UnicodeError:  # of the codec "idna": an empty label, or one that is too long
        fail(f"cannot listen on {host} port {port}: that is no host name", UNAVAILABLE)
