"""Run an async provider on its own event loop, in a thread, for blocking callers."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from shedlock_py import Lease, LockRecord, LockRequest
from shedlock_py.model.durations import Duration
from shedlock_py.runtime.blocking import OnOwnLoop


class BlockingLockProvider(OnOwnLoop):
    """Present an :class:`AsyncLockProvider` as a :class:`LockProvider`, so that one suite tests both.

    ``make`` is called on the event loop. :meth:`close` also closes the async provider, if it has a ``close``. The async
    provider's other methods, such as ``pause`` or ``runs``, are available here too.
    """

    longest_wait = 60.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def acquire(self, request: LockRequest) -> Lease | None:
        return self.run(self.async_provider.acquire(request))

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return self.run(self.async_provider.extend(lease, lock_at_most_for))

    def release(self, lease: Lease) -> bool:
        return self.run(self.async_provider.release(lease))

    def record(self, name: str) -> LockRecord | None:
        return self.run(self.async_provider.record(name))

    def records(self, prefix: str = "") -> list[LockRecord]:
        return self.run(self.async_provider.records(prefix))

    def force_release(self, name: str, expected: LockRecord | None = None) -> bool:
        return self.run(self.async_provider.force_release(name, expected))

    def take_over(self, request: LockRequest, expected: LockRecord | None = None) -> Lease:
        return self.run(self.async_provider.take_over(request, expected))

    def prune(self, unused_for: Duration, prefix: str = "") -> int:
        return self.run(self.async_provider.prune(unused_for, prefix))

    def create_schema(self) -> None:
        self.run(self.async_provider.create_schema())
