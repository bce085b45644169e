"""Providers in front of other providers: a base that forwards every operation, and a provider that fails on demand."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from shedlock_py import (
    AsyncInMemoryLockProvider,
    AsyncLockProvider,
    InMemoryLockProvider,
    LockProvider,
    ProviderUnreachable,
)

OPERATIONS = (
    "acquire", "extend", "release", "record", "records", "force_release", "take_over", "prune", "create_schema",
)  # fmt: skip


def _forwarded(operation: str) -> Any:
    def forward(self: Any, *arguments: Any) -> Any:
        return self.call(operation, *arguments)

    forward.__name__ = operation  # error messages contain it
    return forward


def _async_forwarded(operation: str) -> Any:
    async def forward(self: Any, *arguments: Any) -> Any:
        return await self.call(operation, *arguments)

    forward.__name__ = operation
    return forward


class ForwardingProvider(LockProvider):
    """Send every operation through :meth:`call`, which subclasses override."""

    inner: Any
    acquire = _forwarded("acquire")
    extend = _forwarded("extend")
    release = _forwarded("release")
    record = _forwarded("record")
    records = _forwarded("records")
    force_release = _forwarded("force_release")
    take_over = _forwarded("take_over")
    prune = _forwarded("prune")
    create_schema = _forwarded("create_schema")

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # during a copy
            raise AttributeError(name)
        return getattr(self.inner, name)

    def call(self, operation: str, *arguments: Any) -> Any:
        return getattr(self.inner, operation)(*arguments)


class AsyncForwardingProvider(AsyncLockProvider):
    inner: Any
    acquire = _async_forwarded("acquire")
    extend = _async_forwarded("extend")
    release = _async_forwarded("release")
    record = _async_forwarded("record")
    records = _async_forwarded("records")
    force_release = _async_forwarded("force_release")
    take_over = _async_forwarded("take_over")
    prune = _async_forwarded("prune")
    create_schema = _async_forwarded("create_schema")

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    async def call(self, operation: str, *arguments: Any) -> Any:
        return await getattr(self.inner, operation)(*arguments)


class _Faults:
    recovered: Any
    """An event of threading or asyncio."""

    def __init__(self, delay: float, fail: Iterable[str], hang: Iterable[str]) -> None:
        self.delay = delay
        self.failing = set(fail)
        self.hanging = set(hang)
        self.calls: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()

    def fail(self, *operations: str) -> None:
        """Let these operations, or all, raise :class:`ProviderUnreachable`."""
        self.failing |= set(operations or OPERATIONS)

    def hang(self, *operations: str) -> None:
        """Let these operations, or all, get no reply until :meth:`recover`."""
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


class FaultyProvider(_Faults, ForwardingProvider):
    """A provider in front of ``inner``, by default an in-memory store. Two providers on one ``inner`` are two replicas.

    :param delay: seconds that each operation takes.
    :param fail, hang: names of operations that fail or hang from the start.
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
        self.inner = inner or InMemoryLockProvider()
        self.recovered = threading.Event()
        self.waiting = 0  # how many calls hang
        self._counting = threading.Lock()

    def call(self, operation: str, *arguments: Any) -> Any:
        self._begin(operation)
        try:
            if self.delay:
                time.sleep(self.delay)
            if operation in self.hanging:
                self._hang()
            self._check(operation, arguments)
            return super().call(operation, *arguments)
        finally:
            self.busy[operation] -= 1

    def _hang(self) -> None:
        with self._counting:
            self.waiting += 1
        try:
            self.recovered.wait(30)
        finally:
            with self._counting:
                self.waiting -= 1


class AsyncFaultyProvider(_Faults, AsyncForwardingProvider):
    """:class:`FaultyProvider` for asyncio. Without ``inner``, :attr:`sync` is a sync provider on the same store.

    :param clock: the clock of that store.
    """

    def __init__(
        self,
        inner: AsyncLockProvider | None = None,
        *,
        delay: float = 0.0,
        fail: Iterable[str] = (),
        hang: Iterable[str] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(delay, fail, hang)
        self.sync = InMemoryLockProvider(clock=clock) if clock else InMemoryLockProvider()
        self.inner = inner or AsyncInMemoryLockProvider(shared_with=self.sync)
        self.recovered = asyncio.Event()

    async def call(self, operation: str, *arguments: Any) -> Any:
        self._begin(operation)
        try:
            if self.delay:
                await asyncio.sleep(self.delay)
            if operation in self.hanging:
                await self.recovered.wait()
            self._check(operation, arguments)
            return await super().call(operation, *arguments)
        finally:
            self.busy[operation] -= 1
