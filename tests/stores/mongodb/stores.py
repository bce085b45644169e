"""One collection on one server, with sync or async providers. Each test closes its providers at its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from pymongo import AsyncMongoClient, MongoClient
from pymongo.collection import Collection

from shedlock_py import AsyncLockProvider, LockProvider
from shedlock_py.providers.mongodb import AsyncMongoLockProvider, MongoLockProvider
from shedlock_py.testing.blocking import BlockingLockProvider
from tests.support.database import Address
from tests.support.mongodb import MongoServer

DATABASE = "tests_mongodb"

QUIET: dict[str, Any] = {"serverMonitoringMode": "poll", "heartbeatFrequencyMS": 600_000}
"""URL options: the client checks the server only at its first use."""
SLOW_SERVER: dict[str, Any] = {"timeoutMS": 20_000}
"""URL options for tests that are not about time limits: the server is a Python program on a busy machine."""


@dataclass
class Store:
    server: MongoServer
    is_async: bool = False
    collection: str = field(default_factory=lambda: f"locks_{uuid4().hex[:8]}")
    stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.admin = self.stack.enter_context(self.server.connect())
        self.stack.callback(self.documents.drop)

    @property
    def documents(self) -> Collection[dict[str, Any]]:
        """The lock records, read past the provider."""
        return self.admin[DATABASE][self.collection]

    def url(self, via: Address | None = None, **options: Any) -> str:
        return self.server.url(DATABASE, via=via, **options)

    def provider(self, via: Address | None = None, *, url: str | None = None, **options: Any) -> LockProvider:
        """Open a provider from a URL; wrap an async provider in a sync facade. `options` are the URL's."""
        address = url or self.url(via, **options)
        if self.is_async:
            return self.blocking(lambda: AsyncMongoLockProvider(address, collection=self.collection))
        provider = MongoLockProvider(address, collection=self.collection)
        self.stack.callback(provider.close)
        return provider

    def provider_of_client(self, via: Address | None = None, **options: Any) -> LockProvider:
        """Open a provider on a client as a user makes it."""
        if not self.is_async:
            client = self.stack.enter_context(MongoClient[Any](self.url(via), **options))
            return MongoLockProvider(client[DATABASE], collection=self.collection)
        async_client = AsyncMongoClient[Any](self.url(via), **options)
        provider = self.blocking(lambda: AsyncMongoLockProvider(async_client[DATABASE][self.collection]))
        self.stack.callback(lambda: provider.run(async_client.close()))
        return provider

    def blocking(self, make: Callable[[], AsyncLockProvider]) -> BlockingLockProvider:
        return self.stack.enter_context(BlockingLockProvider(make))
