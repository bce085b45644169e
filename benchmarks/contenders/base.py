"""What is measured: one way to acquire and release a lock."""

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
"""How long every lease is; nothing in a benchmark runs that long."""


class RefusedError(Exception):
    """A lock that must have been free was not."""


class Session:
    """An open way to a store. One thread, one lock at a time."""

    def expect(self, names: Iterable[str]) -> None:
        """These will be used, and have their records: what is made once for each name is made before it is timed."""

    def take(self, name: str) -> bool:
        """Acquire, once. False: another client holds it."""
        raise NotImplementedError

    def give(self, name: str) -> None:
        """Give back what was taken last."""
        raise NotImplementedError

    def cycle(self, name: str) -> None:
        """Acquire and release."""
        if not self.take(name):
            raise RefusedError(name)
        self.give(name)

    def refused(self, name: str) -> bool:
        """Try to take a lock that another client holds."""
        return not self.take(name)

    def keep(self, name: str) -> None:
        """Take a lock and keep it."""
        if not self.take(name):
            raise RefusedError(name)

    def close(self) -> None:
        """Close what was opened."""


class AsyncSession:
    """The same for asyncio."""

    async def start(self) -> None:
        """Open what cannot be opened without awaiting."""

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
        """Close what was opened."""


@dataclass(frozen=True)
class Contender:
    store: str
    name: str
    kind: Kind
    open: Callable[[Site], Session | AsyncSession]
    package: str = ""
    """What is installed from PyPI, whose version is of interest."""
    lacks: str = ""
    """What a lock of ours has, and this one has not."""
    floor: str = "floor"
    """The name of the floor it is compared with."""
    is_async: bool = False
    skips: bool = True
    """Whether it can be refused at once, without waiting."""
    has_lease: bool = True
    """Whether the lock of a holder that died ends by itself, on a store that others see."""

    @property
    def group(self) -> str:
        return f"{self.store} async" if self.is_async else self.store

    @property
    def slug(self) -> str:
        """For lock names: contenders that share a store must not share locks."""
        return "".join(letter if letter.isalnum() else "-" for letter in f"{self.group}-{self.name}".lower())[:50]

    @property
    def version(self) -> str:
        return version(self.package) if self.package else ""


def load(module: str) -> Any:
    """A module that may be missing; its contender is then reported as absent."""
    return import_module(module)


def new_token() -> str:
    """An owner that nobody guesses, as cheaply as Python makes one."""
    return os.urandom(16).hex()
