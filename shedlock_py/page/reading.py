"""What the page reads from a provider. Sync, for worker threads: an async provider is called on its event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from shedlock_py.display import printable
from shedlock_py.errors import ConfigurationError
from shedlock_py.history import Run
from shedlock_py.provider import LockProvider
from shedlock_py.record import LockRecord
from shedlock_py.request import validate_name

RECENT = 10
"""Runs of each name that the list of all jobs reads."""
NAMES_AT_ONCE = 200
"""Each such request has the provider's time limit for itself."""


class OnLoop:
    """An async provider for worker threads: each call is carried out on the event loop that serves the page."""

    def __init__(self, provider: object, loop: asyncio.AbstractEventLoop) -> None:
        self._provider = provider
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._provider)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._provider, name)
        if not inspect.iscoroutinefunction(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(found(*arguments, **options), self._loop).result()

        return call


class Store:
    """A provider, as the views need it."""

    def __init__(self, provider: Any) -> None:
        self.provider: Any = provider

    @property
    def locks(self) -> LockProvider:
        locks: LockProvider = self.provider
        return locks

    @property
    def shown(self) -> str:
        """The store for people to read; providers hide the password of their URL."""
        return printable(repr(self.provider))

    def can(self, method: str) -> bool:
        return getattr(self.provider, method, None) is not None

    def records(self) -> list[LockRecord]:
        return self.locks.records()

    def runs(self, name: str, limit: int) -> list[Run] | None:
        """The last runs of one name; None: this provider keeps no history."""
        if not self.can("runs"):
            return None
        validate_name(name)  # what follows must not take its error for that of a provider without history
        try:
            runs: list[Run] = self.provider.runs(name, limit)
        except ConfigurationError:
            return None
        return runs

    def recent_runs(self, names: Sequence[str]) -> dict[str, list[Run]] | None:
        """The last runs of each of ``names``, in few requests; None: this provider keeps no history."""
        if not self.can("runs"):
            return None
        names = [name for name in names if _is_valid(name)]  # another program may have written any name
        found: dict[str, list[Run]] = {}
        try:
            if not self.can("recent_runs"):
                return {name: self.provider.runs(name, RECENT) for name in names}
            for start in range(0, max(1, len(names)), NAMES_AT_ONCE):
                found |= self.provider.recent_runs(names[start : start + NAMES_AT_ONCE], RECENT)
        except ConfigurationError:
            return None
        return found


def _is_valid(name: str) -> bool:
    try:
        return bool(validate_name(name))
    except ConfigurationError:
        return False
