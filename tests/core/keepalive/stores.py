"""A store whose behaviour a test chooses from moment to moment."""

from __future__ import annotations

import asyncio
import threading
from typing import Literal

from shedlock_py import AsyncInMemoryLockProvider, InMemoryLockProvider, Lease, ProviderUnreachable
from shedlock_py.durations import Duration

Mood = Literal["well", "down", "hanging"]


class MoodyProvider(InMemoryLockProvider):
    """Extensions fail while it is "down", and get no answer while it is "hanging"."""

    def __init__(self) -> None:
        super().__init__()
        self.mood: Mood = "well"
        self.extensions = 0
        self.most_at_once = 0
        self._asking = 0
        self._is_well = threading.Event()

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        self.extensions += 1
        self._asking += 1
        self.most_at_once = max(self.most_at_once, self._asking)
        try:
            if self.mood == "hanging":
                self._is_well.wait(30)
            if self.mood == "down":
                raise ProviderUnreachable("down", operation="extend", lock_name=lease.name) from OSError("down")
            return super().extend(lease, lock_at_most_for)
        finally:
            self._asking -= 1

    def recover(self) -> None:
        self.mood = "well"
        self._is_well.set()


class AsyncMoodyProvider(AsyncInMemoryLockProvider):
    """:class:`MoodyProvider` for asyncio; :attr:`sync` sees the same locks."""

    def __init__(self) -> None:
        self.sync = InMemoryLockProvider()
        super().__init__(shared_with=self.sync)
        self.mood: Mood = "well"
        self.extensions = 0
        self._is_well = asyncio.Event()

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        self.extensions += 1
        if self.mood == "hanging":
            await self._is_well.wait()
        if self.mood == "down":
            raise ProviderUnreachable("down", operation="extend", lock_name=lease.name) from OSError("down")
        return await super().extend(lease, lock_at_most_for)

    def recover(self) -> None:
        self.mood = "well"
        self._is_well.set()
