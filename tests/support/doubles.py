"""Providers whose store is slow, fails or hangs, as a test says from moment to moment; they count their operations."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from shedlock_py import (
    AsyncInMemoryLockProvider,
    AsyncLockProvider,
    InMemoryLockProvider,
    Lease,
    LockProvider,
    LockRecord,
    LockRequest,
    ProviderUnreachable,
)
from shedlock_py.durations import Duration

OPERATIONS = (
    "acquire", "extend", "release", "record", "records", "force_release", "take_over", "prune", "create_schema",
)  # fmt: skip


class _Faults:
    """Which operations fail or hang; the same for both kinds of provider."""

    recovered: Any
    """An event, of threading or asyncio."""

    def __init__(self, delay: float, fail: Iterable[str], hang: Iterable[str]) -> None:
        self.delay = delay
        self.failing = set(fail)
        self.hanging = set(hang)
        self.calls: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()

    def fail(self, *operations: str) -> None:
        """These operations, or all of them, raise :class:`ProviderUnreachable`."""
        self.failing |= set(operations or OPERATIONS)

    def hang(self, *operations: str) -> None:
        """These operations, or all of them, get no reply until :meth:`recover`."""
        self.recovered.clear()
        self.hanging |= set(operations or OPERATIONS)

    def recover(self) -> None:
        self.failing.clear()
        self.hanging.clear()
        self.recovered.set()

    def _begin(self, operation: str) -> None:
        self.calls[operation] += 1
        self.busy[operation] += 1
        self.most_at_once[operation] = max(self.most_at_once[operation], self.busy[operation])

    def _check(self, operation: str, arguments: tuple[Any, ...]) -> None:
        if operation in self.failing:
            name = getattr(arguments[0], "name", arguments[0]) if arguments else ""
            raise ProviderUnreachable("down", operation=operation, lock_name=name) from OSError("down")


class FaultyProvider(_Faults, LockProvider):
    """A provider in front of ``inner``, by default a store in memory. Two on one ``inner`` are two replicas.

    :param delay: seconds that each operation takes.
    :param fail, hang: names of operations that do so from the start.
    """

    def __init__(
        self,
        inner: LockProvider | None = None,
        *,
        delay: float = 0.0,
        fail: Iterable[str] = (),
        hang: Iterable[str] = (),
    ) -> None:
        super().__init__(delay, fail, hang)
        self.inner: Any = inner or InMemoryLockProvider()
        self.recovered = threading.Event()

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # in the middle of a copy
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _call(self, operation: str, *arguments: Any) -> Any:
        self._begin(operation)
        try:
            if self.delay:
                time.sleep(self.delay)
            if operation in self.hanging:
                self.recovered.wait(30)
            self._check(operation, arguments)
            return getattr(self.inner, operation)(*arguments)
        finally:
            self.busy[operation] -= 1

    def acquire(self, request: LockRequest) -> Lease | None:
        lease: Lease | None = self._call("acquire", request)
        return lease

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        extended: Lease | None = self._call("extend", lease, lock_at_most_for)
        return extended

    def release(self, lease: Lease) -> bool:
        return bool(self._call("release", lease))

    def record(self, name: str) -> LockRecord | None:
        record: LockRecord | None = self._call("record", name)
        return record

    def records(self, prefix: str = "") -> list[LockRecord]:
        records: list[LockRecord] = self._call("records", prefix)
        return records

    def force_release(self, name: str) -> bool:
        return bool(self._call("force_release", name))

    def take_over(self, request: LockRequest) -> Lease:
        lease: Lease = self._call("take_over", request)
        return lease

    def prune(self, unused_for: Duration) -> int:
        return int(self._call("prune", unused_for))

    def create_schema(self) -> None:
        self._call("create_schema")


class AsyncFaultyProvider(_Faults, AsyncLockProvider):
    """:class:`FaultyProvider` for asyncio. Without ``inner``, :attr:`sync` is a sync provider on the same store."""

    def __init__(
        self,
        inner: AsyncLockProvider | None = None,
        *,
        delay: float = 0.0,
        fail: Iterable[str] = (),
        hang: Iterable[str] = (),
    ) -> None:
        super().__init__(delay, fail, hang)
        self.sync = InMemoryLockProvider()
        self.inner: Any = inner or AsyncInMemoryLockProvider(shared_with=self.sync)
        self.recovered = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # in the middle of a copy
            raise AttributeError(name)
        return getattr(self.inner, name)

    async def _call(self, operation: str, *arguments: Any) -> Any:
        self._begin(operation)
        try:
            if self.delay:
                await asyncio.sleep(self.delay)
            if operation in self.hanging:
                await self.recovered.wait()
            self._check(operation, arguments)
            return await getattr(self.inner, operation)(*arguments)
        finally:
            self.busy[operation] -= 1

    async def acquire(self, request: LockRequest) -> Lease | None:
        lease: Lease | None = await self._call("acquire", request)
        return lease

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        extended: Lease | None = await self._call("extend", lease, lock_at_most_for)
        return extended

    async def release(self, lease: Lease) -> bool:
        return bool(await self._call("release", lease))

    async def record(self, name: str) -> LockRecord | None:
        record: LockRecord | None = await self._call("record", name)
        return record

    async def records(self, prefix: str = "") -> list[LockRecord]:
        records: list[LockRecord] = await self._call("records", prefix)
        return records

    async def force_release(self, name: str) -> bool:
        return bool(await self._call("force_release", name))

    async def take_over(self, request: LockRequest) -> Lease:
        lease: Lease = await self._call("take_over", request)
        return lease

    async def prune(self, unused_for: Duration) -> int:
        return int(await self._call("prune", unused_for))

    async def create_schema(self) -> None:
        await self._call("create_schema")
