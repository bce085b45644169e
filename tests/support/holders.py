"""Holders that a record can name, and that ``LockRequest`` refuses."""

from __future__ import annotations

from shedlock_py import LockRequest
from shedlock_py.model.durations import Duration


def unchecked(name: str, lock_at_most_for: Duration, holder: str) -> LockRequest:
    """Return a request with ``holder``, as another program or a demotion writes it."""
    request = LockRequest(name, lock_at_most_for)
    vars(request)["holder"] = holder
    return request
