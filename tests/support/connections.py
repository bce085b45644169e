"""How many clients on this machine a server has, as the kernel counts: the count needs no session of its own."""

import os
import socket
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.database import Address

_ESTABLISHED, _CLOSE_WAIT = "01", "08"
_SECONDS = 0.01


def connections_to(addresses: Iterable[Address]) -> int:
    """Return the number of connections from clients on this machine to these addresses (IPv4)."""
    return len(_clients_of(addresses))


def unserved(addresses: Iterable[Address]) -> int:
    """Return how many connections to these addresses are closed by the client but not by the server.

    A client that gives up closes its connection. The server still executes a request that was held back on the way or
    not read yet, and only then closes its side.
    """
    ports = {f"{port:04X}" for _, port in addresses}
    return sum(state == _CLOSE_WAIT and local[-4:] in ports for local, _, state in _table())


def process_of(client: Address, server: Address, pids: Iterable[int]) -> int | None:
    """Return the process, of ``pids``, that has the client's end of this connection. None if no process has it, or it
    ended."""
    ends = f" {_as_the_kernel_writes(client)} {_as_the_kernel_writes(server)} "
    _, _, fields = Path("/proc/net/tcp").read_text().partition(ends)  # the kernel takes most of the time, for the table
    if fields:
        socket_of_client = f"socket:[{fields.split(maxsplit=7)[6]}]"
        for pid in pids:
            with suppress(FileNotFoundError):  # the process has ended
                for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(FileNotFoundError):  # closed meanwhile
                        if os.readlink(descriptor) == socket_of_client:
                            return pid
    return None


def _clients_of(addresses: Iterable[Address]) -> set[str]:
    wanted = {_as_the_kernel_writes(address) for address in addresses}
    return {local for local, remote, state in _table() if state == _ESTABLISHED and remote in wanted}


def _table() -> list[tuple[str, str, str]]:
    """Return the local address, remote address and state of each IPv4 connection."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return [(local, remote, state) for _, local, remote, state, *_ in map(str.split, lines)]


@cache
def _as_the_kernel_writes(address: Address) -> str:
    """``0100007F:1F90``: the host has this machine's byte order, the port has not."""
    host, port = address
    number = int.from_bytes(socket.inet_aton(socket.gethostbyname(host)), sys.byteorder)
    return f"{number:08X}:{port:04X}"


class MostConnections:
    """Count new connections a hundred times a second during the block; `most` is the maximum."""

    def __init__(self, addresses: Iterable[Address]) -> None:
        self.addresses = list(addresses)
        self.most = 0
        self._older = _clients_of(self.addresses)  # a shared server still has connections of earlier tests
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(_SECONDS):
            self.most = max(self.most, len(_clients_of(self.addresses) - self._older))
