"""A store that a test can take away from an election."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from shedlock_py import InMemoryLockProvider, ProviderUnreachable

OPERATIONS = ("acquire", "extend", "release", "record", "take_over")


class ElectionStore(InMemoryLockProvider):
    """An in-memory store that is "down" or "hanging" for everybody, or for one holder, and counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = self.hangs = False
        self.asked: Counter[str] = Counter()
        self._is_well = threading.Event()

    def hang(self) -> None:
        self._is_well.clear()
        self.hangs = True

    def go_down(self) -> None:
        self.is_down = True

    def recover(self) -> None:
        self.is_down = self.hangs = False
        self._is_well.set()

    def _ask(self, operation: str, *args: Any) -> Any:
        self.asked[operation] += 1
        if self.hangs:
            self._is_well.wait(30)
        if self.is_down:
            raise ProviderUnreachable("down", operation=operation, lock_name="election") from OSError("down")
        return getattr(super(), operation)(*args)

    def acquire(self, request: Any) -> Any:
        return self._ask("acquire", request)

    def extend(self, lease: Any, lock_at_most_for: Any) -> Any:
        return self._ask("extend", lease, lock_at_most_for)

    def release(self, lease: Any) -> Any:
        return self._ask("release", lease)

    def record(self, name: Any) -> Any:
        return self._ask("record", name)

    def take_over(self, request: Any) -> Any:
        return self._ask("take_over", request)


class AnotherView(ElectionStore):
    """The same store as another node sees it, which can be cut off by itself."""

    def __init__(self, store: InMemoryLockProvider) -> None:
        super().__init__()
        self.programs, self._client = store.programs, store._client
