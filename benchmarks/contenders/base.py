"""Contenders: ways to acquire and release a lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from importlib.metadata import version
from typing import Any, Literal

from benchmarks.servers import Site

Kind = Literal["floor", "us", "peer"]

SECONDS = 60
LEASE = timedelta(seconds=SECONDS)
"""The length of every lease. No benchmark runs that long."""


class RefusedError(Exception):
    """A lock that should be free was held."""


class Session:
    """An open connection to a store. One thread, one lock at a time."""

    def expect(self, names: Iterable[str]) -> None:
        """Announce names, and create their records, so that timings do not include one-time work."""

    def take(self, name: str) -> bool:
        """Acquire, without a retry. Return False if another client holds the lock."""
        raise NotImplementedError

    def give(self, name: str) -> None:
        """Release the last acquired lock."""
        raise NotImplementedError

    def cycle(self, name: str) -> None:
        """Acquire and release."""
        if not self.take(name):
            raise RefusedError(name)
        self.give(name)

    def refused(self, name: str) -> bool:
        """Return whether an attempt fails on a lock that another client holds."""
        return not self.take(name)

    def keep(self, name: str) -> None:
        """Acquire a lock and keep it."""
        if not self.take(name):
            raise RefusedError(name)

    def close(self) -> None:
        """Close the connection."""


class AsyncSession:
    """A :class:`Session` for asyncio."""

    async def start(self) -> None:
        """Open everything that needs ``await``."""

    async def take(self, name: str) -> bool:
        raise NotImplementedError

    async def give(self, name: str) -> None:
        raise NotImplementedError

    async def cycle(self, name: str) -> None:
        if not await self.take(name):
            raise RefusedError(name)
        await self.give(name)

    async def refused(self, name: str) -> bool:
        return not await self.take(name)

    async def keep(self, name: str) -> None:
        if not await self.take(name):
            raise RefusedError(name)

    async def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True)
class Contender:
    store: str
    name: str
    kind: Kind
    open: Callable[[Site], Session | AsyncSession]
    package: str = ""
    """Name on PyPI, for the version."""
    lacks: str = ""
    """Features of our locks that this lock lacks."""
    floor: str = "floor"
    """Name of the floor to compare with."""
    is_async: bool = False
    skips: bool = True
    """Whether it can skip at once, without waiting."""
    has_lease: bool = True
    """Whether a dead holder's lock expires, on a store that others see."""

    @property
    def group(self) -> str:
        return f"{self.store} async" if self.is_async else self.store

    @property
    def slug(self) -> str:
        """For lock names: contenders on one store must not share locks."""
        return "".join(letter if letter.isalnum() else "-" for letter in f"{self.group}-{self.name}".lower())[:50]

    @property
    def version(self) -> str:
        return version(self.package) if self.package else ""


def load(module: str) -> Any:
    """Import a module. If it is missing, its contender is reported as absent."""
    return import_module(module)


def new_token() -> str:
    """Return an owner that nobody can guess, at Python's lowest cost."""
    return os.urandom(16).hex()
