"""One process of ``shedlock doctor --torture``: ``python -m shedlock_py.operators.racers``.

It reads a command in JSON from each line of its standard input, and prints a reply. The first line has the store: a URL
with a password must not be an argument, which other users see.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any

from shedlock_py.model.lease import Lease
from shedlock_py.model.request import LockRequest
from shedlock_py.operators.display import one_line
from shedlock_py.operators.torture import Reply
from shedlock_py.provider import LockProvider
from shedlock_py.runtime.process import monotonic
from shedlock_py.settings.lookup import sync_provider

MOST_COPIES = 100
"""The number of copies of leases that a racer keeps."""


class Racer:
    """The work of one racer. It may hold several leases, by lock name."""

    def __init__(self, provider: LockProvider, holder: str) -> None:
        self._provider = provider
        self._holder = holder
        self._leases: dict[str, Lease] = {}
        self._copies: dict[str, Lease] = {}

    def carry_out(self, do: str, at: float = 0.0, **arguments: Any) -> Reply:
        time.sleep(max(0.0, at - monotonic()))
        sent = monotonic()
        try:
            values: dict[str, Any] = getattr(self, do)(**arguments)
        except Exception as error:
            values = {"error": one_line(f"{type(error).__name__}: {error}")}
        return Reply(**{"racer": self._holder, "sent": sent, "received": monotonic(), **values})

    def acquire(
        self, name: str, seconds: float, fire_time: str | None = None, *, releases: bool = False
    ) -> dict[str, Any]:
        moment = None if fire_time is None else datetime.fromisoformat(fire_time)
        request = LockRequest(name, seconds, holder=self._holder, fire_time=moment)
        lease = self._provider.acquire(request)
        if lease is None:
            return {}
        self._leases[name] = lease
        granted = {**_shown(lease), "is_done": True, "received": monotonic()}
        if releases:
            self._provider.release(self._leases.pop(name))
            return granted
        # Its trust is over, so that the provider has only the store's word for what was done with it.
        copy = Lease(request, lease.claim_id, lease.fencing_token, monotonic, monotonic() - seconds)
        copy._note = lease._note
        self._copies[lease.locked_by] = copy
        if len(self._copies) > MOST_COPIES:
            del self._copies[next(iter(self._copies))]
        return granted

    def extend(self, name: str, seconds: float) -> dict[str, Any]:
        lease = self._leases[name]
        return {**_shown(lease), "is_done": self._provider.extend(lease, seconds) is not None}

    def release(self, name: str) -> dict[str, Any]:
        lease = self._leases.pop(name)
        return {**_shown(lease), "is_done": self._provider.release(lease)}

    def late_copy(self, locked_by: str, seconds: float) -> dict[str, Any]:
        """Extend and release a lease that was released before, as a request does that arrives late."""
        copy = self._copies.pop(locked_by)
        return self._used(copy, seconds)

    def woken(self, name: str, seconds: float) -> dict[str, Any]:
        """Go on with a lease, as a process does that stood still and does not know it."""
        lease = self._leases.pop(name)
        is_trusted = lease.is_trusted()
        used = self._used(lease, seconds)
        return {**used, "is_done": True, "details": "its lease was trusted"} if is_trusted else used

    def _used(self, lease: Lease, seconds: float) -> dict[str, Any]:
        done = ["an extend"] if self._provider.extend(lease, seconds) is not None else []
        done += ["a release"] if self._provider.release(lease) else []
        return {**_shown(lease), "is_done": bool(done), "details": " and ".join(done)}

    def read(self, name: str) -> dict[str, Any]:
        record = self._provider.record(name)
        if record is None:
            return {"error": f"{name} has no record"}
        token, read_at = record.fencing_token, record.read_at.timestamp()
        return {"locked_by": record.locked_by, "token": token, "read_at": read_at}

    def close(self) -> None:
        for lease in self._leases.values():
            with suppress(Exception):
                self._provider.release(lease)
        getattr(self._provider, "close", lambda: None)()


def _shown(lease: Lease) -> dict[str, Any]:
    return {"locked_by": lease.locked_by, "token": lease.fencing_token, "until": lease.trusted_until}


def main() -> None:
    for name in {"SIGINT", "SIGHUP"} & {*dir(signal)}:  # for the parent process: its pipe ends with it
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a module of the user may print
    start = json.loads(sys.stdin.readline())
    try:
        racer = Racer(sync_provider(start["store"]), start["holder"])
    except Exception as error:
        print(json.dumps({"error": one_line(error)}), file=replies, flush=True)
        return
    print(json.dumps({}), file=replies, flush=True)
    with suppress(BrokenPipeError):
        for line in sys.stdin:
            print(json.dumps(asdict(racer.carry_out(**json.loads(line)))), file=replies, flush=True)
    if start["sleeper"] is not None and hasattr(signal, "SIGCONT"):
        with suppress(OSError):
            os.kill(start["sleeper"], signal.SIGCONT)  # the parent process may have been killed while it was stopped
    racer.close()


if __name__ == "__main__":
    main()
