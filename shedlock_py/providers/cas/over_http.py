"""For sync clients over httpx: no request leaves after its time limit."""

from __future__ import annotations

from typing import Any

from shedlock_py._process import monotonic
from shedlock_py.providers.kit import TimedOut


def sent_before(until: float | None) -> dict[str, Any]:
    """The extensions of a request of ``httpx.Client`` that is not sent after ``until`` of the monotonic clock.

    A thread that looks up a host name, or tries several dead addresses, cannot be interrupted. Its caller gives up
    meanwhile, and the undo is sent. A request that left later would hold the lock for nobody.
    The extension: https://www.encode.io/httpcore/extensions/#trace
    """
    if until is None:
        return {}

    def trace(event: str, _: object) -> None:
        if event.endswith(".send_request_headers.started") and monotonic() > until:
            raise TimedOut("a connection", sent=False)

    return {"trace": trace}
