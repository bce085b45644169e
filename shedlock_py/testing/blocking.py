"""An async provider for callers that are not: on an event loop of its own, in a thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from shedlock_py import AsyncLockProvider, Lease, LockRecord, LockRequest
from shedlock_py.durations import Duration
from shedlock_py.history import Run
from shedlock_py.provider import Check

T = TypeVar("T")

_LONGEST_WAIT = 60.0


class BlockingLockProvider:
    """Presents an :class:`AsyncLockProvider` as a :class:`LockProvider`, so that one suite tests both.

    ``make`` is called on the event loop. :meth:`close` closes the provider too, if it has an async ``close``.
    """

    def __init__(self, make: Callable[[], AsyncLockProvider]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event loop of a test", daemon=True)
        self._thread.start()
        self.async_provider = self.run(_call(make))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` returns or raises, on the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_LONGEST_WAIT)

    def close(self) -> None:
        self.run(_close(self.async_provider))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LONGEST_WAIT)
        self._loop.close()

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

    def runs(self, name: str, limit: int = 50) -> list[Run]:
        provider: Any = self.async_provider  # not in the protocol
        runs: list[Run] = self.run(provider.runs(name, limit))
        return runs

    def recent_runs(self, names: Iterable[str], limit: int = 10) -> dict[str, list[Run]]:
        provider: Any = self.async_provider  # not in the protocol
        runs: dict[str, list[Run]] = self.run(provider.recent_runs(names, limit))
        return runs

    def checks(self) -> list[Check]:
        provider: Any = self.async_provider  # not in the protocol
        checks: list[Check] = self.run(provider.checks())
        return checks

    def pause(self, name: str, for_: Duration, *arguments: Any, **options: Any) -> LockRecord:
        provider: Any = self.async_provider  # not in the protocol
        record: LockRecord = self.run(provider.pause(name, for_, *arguments, **options))
        return record

    def resume(self, name: str) -> bool:
        provider: Any = self.async_provider  # not in the protocol
        is_resumed: bool = self.run(provider.resume(name))
        return is_resumed

    def undo(self, lease: Lease) -> bool:
        provider: Any = self.async_provider  # not in the protocol
        undone: bool = self.run(provider.undo(lease))
        return undone

    def forget_fire_time(self, name: str) -> bool:
        provider: Any = self.async_provider  # not in the protocol
        forgotten: bool = self.run(provider.forget_fire_time(name))
        return forgotten

    def record(self, name: str) -> LockRecord | None:
        return self.run(self.async_provider.record(name))

    def records(self, prefix: str = "") -> list[LockRecord]:
        return self.run(self.async_provider.records(prefix))

    def force_release(self, name: str) -> bool:
        return self.run(self.async_provider.force_release(name))

    def take_over(self, request: LockRequest) -> Lease:
        return self.run(self.async_provider.take_over(request))

    def prune(self, unused_for: Duration) -> int:
        return self.run(self.async_provider.prune(unused_for))

    def create_schema(self) -> None:
        self.run(self.async_provider.create_schema())


async def _call(make: Callable[[], AsyncLockProvider]) -> AsyncLockProvider:
    return make()


async def _close(provider: object) -> None:
    close = getattr(provider, "close", None)
    if inspect.iscoroutinefunction(close):
        await close()
    leftovers = asyncio.all_tasks() - {asyncio.current_task()}
    for task in leftovers:
        task.cancel()
    await asyncio.gather(*leftovers, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
