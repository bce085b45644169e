"""Whether a server, or a proxy, has finished with all whose senders have given up.

A client that gives up closes its connection. Its request, held back on the way or not yet read, is carried out all the
same, and only then does the server close its side: until then the kernel shows a socket that waits to be closed. So it
can be seen, however slow the machine is, when nothing is under way any more that nobody waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.fleet import TIMEOUT, Fleet, WorkerProcess
from tests.faults.history import DISTURBED, EVERY_WORKER
from tests.support.database import Address
from tests.support.polling import wait_until

EVERYBODY = WorkerProcess(EVERY_WORKER, 0)
_CLOSE_WAIT = "08"


@contextmanager
def disturbed(fleet: Fleet, worker: WorkerProcess, addresses: Iterable[Address]) -> Iterator[None]:
    """The block disturbs the connections of ``worker`` to ``addresses``, and lets them be in the end.

    The history shall know of it; it lasts until nothing is under way any more of what was sent meanwhile.
    """
    with fleet.marked(DISTURBED, worker):
        yield
        wait_until(lambda: unserved(addresses) == 0, timeout=TIMEOUT, what="all that was held back has arrived")


def unserved(addresses: Iterable[Address]) -> int:
    """How many connections to these servers on this machine their clients have closed, but not yet the servers."""
    ports = {f"{port:04X}" for _, port in addresses}
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return sum(state == _CLOSE_WAIT and local.rpartition(":")[2] in ports for _, local, _, state, *_ in fields)
