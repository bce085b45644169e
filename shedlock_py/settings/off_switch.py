"""Run tasks without locks, on a developer's machine: the switch, and the providers that grant everything."""

from __future__ import annotations

import os

from shedlock_py.events import logger
from shedlock_py.model.booleans import boolean_of
from shedlock_py.model.durations import Duration
from shedlock_py.model.lease import Claim, Lease
from shedlock_py.model.request import LockRequest

_active: bool | None = None
_warned = False


def set_active(active: bool | None) -> None:
    """Switch locking off (False) or on (True) for this process; None: ``SHEDLOCK_ACTIVE=0`` switches it off.

    While it is off, every task runs, without a lock and without the store: for a developer's machine, never for
    production. One warning is logged.
    """
    global _active, _warned
    _active, _warned = active, False


def is_active() -> bool:
    """Return whether locks are taken at all."""
    global _warned
    active = _active
    if active is None:
        found = os.environ.get("SHEDLOCK_ACTIVE")
        active = not found or boolean_of(found) is not False
    if not active and not _warned:
        _warned = True
        why = "set_active(False)" if _active is False else "SHEDLOCK_ACTIVE"
        logger.warning("LOCKING IS SWITCHED OFF by %s: every replica runs every task", why)
    return active


def _stopped_clock() -> float:
    return 0.0


class Unlocked:
    """Grants everything and remembers nothing: for :func:`set_active`. Has the three methods that guards use.

    Its leases do not end by themselves, because no other replica waits for them.
    """

    def acquire(self, request: LockRequest) -> Lease | None:
        return Claim(request, _stopped_clock).granted(None)

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return lease._begin_extension(lock_at_most_for).granted()

    def release(self, lease: Lease) -> bool:
        lease._end()
        return True


class AsyncUnlocked:
    """:class:`Unlocked` for async code. It does not wait for a thread or an iteration of the event loop."""

    async def acquire(self, request: LockRequest) -> Lease | None:
        return UNLOCKED.acquire(request)

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return UNLOCKED.extend(lease, lock_at_most_for)

    async def release(self, lease: Lease) -> bool:
        return UNLOCKED.release(lease)


UNLOCKED, ASYNC_UNLOCKED = Unlocked(), AsyncUnlocked()
