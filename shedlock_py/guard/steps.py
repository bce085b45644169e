"""The steps of a guard that acquires its lock. ``block`` decides on the steps and carries them out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from shedlock_py.model.record import LockRecord
from shedlock_py.model.request import LockRequest
from shedlock_py.provider import AsyncLockProvider, LockProvider, recover_of

LONGEST_SLEEP = 1.0
"""Seconds. During a longer wait the guard checks its gates in between, so that a shutdown ends the wait."""


class SkippedNow(Exception):
    """Ends the attempts: the task is skipped, and its event was emitted."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Acquire the lock. The reply is the lease, or None if the store refused it."""

    request: LockRequest
    expected: LockRecord | None = None
    """Recover the run of this record, which never ended. None: acquire as usual."""

    def sent_to(self, store: LockProvider | AsyncLockProvider) -> Any:
        """Send the request. An async provider returns an awaitable."""
        return store.acquire(self.request) if self.expected is None else recover_of(store)(self.request, self.expected)


@dataclass(frozen=True, slots=True)
class Read:
    """Read the lock record. The reply is the record."""


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


Step = Attempt | Read | Sleep


def store_frames(error: BaseException, take: Callable[..., Any]) -> TracebackType | None:
    """Return the frames of the store in the traceback of ``error``, if any. ``take`` has called the store."""
    found, traceback = None, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in (take.__code__, Attempt.sent_to.__code__):
            found = traceback.tb_next
        traceback = traceback.tb_next
    return found
