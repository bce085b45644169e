"""Providers that record requests and outcomes of workers, guards and heartbeats."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from shedlock_py import Lease, LockRecord, LockRequest
from shedlock_py.model.durations import parse_duration
from tests.faults.history import Entry, Logbook
from tests.support.doubles import AsyncForwardingProvider, ForwardingProvider

OUTCOMES = {
    "acquire": ("granted", "skipped"),
    "take_over": ("granted", ""),
    "recover": ("granted", "skipped"),
    "extend": ("done", "lost"),
    "release": ("done", "lost"),
    "force_release": ("done", "free"),
    "prune": ("done", "nothing"),
    "record": ("done", "done"),
}
"""Names of the outcome by recorded operation: of a reply with a value, and of an empty reply."""
CLAIMS = ("acquire", "take_over", "recover")


class _Recording:
    def __init__(self, inner: Any, logbook: Logbook, *, keep_alive: bool = False) -> None:
        self.inner = inner
        self._logbook = logbook
        self._keep_alive = keep_alive

    def operation(self, operation: str, arguments: tuple[Any, ...]) -> AbstractContextManager[Entry]:
        if operation in ("extend", "release"):
            lease, *durations = arguments
            facts = {"at_most": parse_duration(durations[0]).total_seconds()} if durations else {}
            return self._logbook.operation(operation, lease.name, lease, **facts)
        if operation not in CLAIMS:
            return self._logbook.operation(operation, "" if operation == "prune" else arguments[0])
        request: LockRequest = arguments[0]
        return self._logbook.operation(
            operation,
            request.name,
            keep_alive=self._keep_alive,
            at_most=request.lock_at_most_for.total_seconds(),
            at_least=request.lock_at_least_for.total_seconds(),
            fire_time=request.fire_time.timestamp() if request.fire_time else None,
        )

    @staticmethod
    def replied(operation: str, entry: Entry, reply: Any) -> None:
        entry.outcome = OUTCOMES[operation][not reply]
        if operation in CLAIMS:
            entry.lease = reply


class RecordedProvider(_Recording, ForwardingProvider):
    def recover(self, request: LockRequest, expected: LockRecord) -> Any:
        return self.call("recover", request, expected)

    def call(self, operation: str, *arguments: Any) -> Any:
        if operation not in OUTCOMES:
            return super().call(operation, *arguments)
        with self.operation(operation, arguments) as entry:
            reply = super().call(operation, *arguments)
            self.replied(operation, entry, reply)
        return reply


class AsyncRecordedProvider(_Recording, AsyncForwardingProvider):
    async def recover(self, request: LockRequest, expected: LockRecord) -> Any:
        return await self.call("recover", request, expected)

    async def call(self, operation: str, *arguments: Any) -> Any:
        if operation not in OUTCOMES:
            return await super().call(operation, *arguments)
        with self.operation(operation, arguments) as entry:
            reply = await super().call(operation, *arguments)
            self.replied(operation, entry, reply)
        return reply


class OnceProvider(RecordedProvider):
    """Records an undo, the end of the lease of a task that raised, as a release."""

    def undo(self, lease: Lease) -> Any:
        with self.operation("release", (lease,)) as entry:
            reply = self.inner.undo(lease)
            self.replied("release", entry, reply)
        return reply


class AsyncOnceProvider(AsyncRecordedProvider):
    async def undo(self, lease: Lease) -> Any:
        with self.operation("release", (lease,)) as entry:
            reply = await self.inner.undo(lease)
            self.replied("release", entry, reply)
        return reply
