"""What the contract needs to know about MongoDB: one collection for a class of tests, two providers on it."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from bson import SON
from bson.codec_options import TypeRegistry
from pymongo import AsyncMongoClient, MongoClient

from shedlock_py import AsyncLockProvider, LockProvider
from shedlock_py.providers.mongodb import AsyncMongoLockProvider, MongoLockProvider
from shedlock_py.testing.contract import BlockingLockProvider, ContractBase, LockProviderFactory
from shedlock_py.testing.proxy import Address, TcpProxy
from tests.support.mongodb import MongoServer
from tests.support.ports import free_port

HOSTILE: dict[str, Any] = {
    "w": 0,
    "readPreference": "secondary",
    "readConcernLevel": "available",
    "tz_aware": False,
    "document_class": SON,
    "type_registry": TypeRegistry(fallback_encoder=str),
    "unicode_decode_error_handler": "replace",
    # With one connection in the pool, whatever keeps one while it asks for another stands still.
    "maxPoolSize": 1,
}
# Behind a proxy that loses replies; tests/stores/mongodb/test_lost_replies.py has a client that retries by itself.
WITHOUT_RETRIES = {"retryWrites": False, "retryReads": False}


class MongoStore:
    """A collection of its own, and the providers of one class of tests."""

    def __init__(self, server: MongoServer, *, is_async: bool, users_client: bool, via_proxy: bool) -> None:
        self._resources = ExitStack()
        self._admin = self._resources.enter_context(server.connect())
        self.proxy = self._resources.enter_context(TcpProxy(server.address)) if via_proxy else None
        self._server = server
        self.url = server.url("contract", timeout="20s")
        self.collection = f"shedlock_{uuid4().hex[:8]}"
        self._is_async = is_async
        self._users_client = users_client
        self._providers: list[LockProvider] = []
        self.provider(0).create_schema()

    def provider(self, number: int) -> LockProvider:
        """The first provider, the second one, …; the same for all tests of the class, as in an application."""
        while len(self._providers) <= number:
            self._providers.append(self.open(self._resources))
        return self._providers[number]

    def open(self, resources: ExitStack, via: Address | None = None) -> LockProvider:
        """Another provider, which is closed with ``resources``."""
        address = via or (self.proxy.address if self.proxy else None)
        # Long limits: the server is written in Python, and shares a machine with the tests.
        url = self._server.url("contract", via=address, timeout="20s")
        users_url = self._server.url("contract", via=address, timeoutMS=20_000)
        users_options = HOSTILE | WITHOUT_RETRIES if via else HOSTILE
        if not self._users_client:
            if self._is_async:
                return resources.enter_context(BlockingLockProvider(lambda: self.async_provider(url)))
            provider = MongoLockProvider(url, collection=self.collection)
            resources.callback(provider.close)
            return provider
        if not self._is_async:
            client = resources.enter_context(MongoClient[Any](users_url, **users_options))
            return MongoLockProvider(client["contract"], collection=self.collection)
        async_client = AsyncMongoClient[Any](users_url, **users_options)
        facade = resources.enter_context(
            BlockingLockProvider(lambda: AsyncMongoLockProvider(async_client["contract"][self.collection]))
        )
        resources.callback(lambda: facade.run(async_client.close()))
        return facade

    def async_provider(self, url: str | None = None) -> AsyncMongoLockProvider:
        return AsyncMongoLockProvider(url or self.url, collection=self.collection)

    @property
    def factory(self) -> Callable[[], Any]:
        """The same store in another process."""
        return partial(
            AsyncMongoLockProvider if self._is_async else MongoLockProvider, self.url, collection=self.collection
        )

    def delete(self, name: str) -> None:
        self._admin["contract"][self.collection].delete_one({"_id": name})

    @contextmanager
    def stalled(self) -> Iterator[None]:
        assert self.proxy, "only a store behind a proxy can be made to wait"
        self.proxy.stall()
        try:
            yield
        finally:
            self.proxy.resume()

    def close(self) -> None:
        self._admin["contract"][self.collection].drop()
        self._resources.close()


def forget_sockets() -> None:
    """PyMongo's async client loses the socket with which it was trying to connect when it is closed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # here, not in another test


class MongoContract(ContractBase):
    """The hooks of the contract for MongoDB."""

    is_async: ClassVar[bool] = False
    users_client: ClassVar[bool] = False
    via_proxy: ClassVar[bool] = False
    clock_resolution: ClassVar[float] = 0.002

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, mongodb_server: MongoServer) -> Iterator[MongoStore]:
        store = MongoStore(
            mongodb_server, is_async=cls.is_async, users_client=cls.users_client, via_proxy=cls.via_proxy
        )
        yield store
        store.close()

    @pytest.fixture(autouse=True)
    def _remember(self, store: MongoStore) -> None:
        self.store_of_class = store

    @pytest.fixture
    def make_provider(self, store: MongoStore) -> LockProviderFactory:
        numbers = iter(range(10))
        return lambda: store.provider(next(numbers))

    @pytest.fixture
    def process_factory(self, store: MongoStore) -> Any:
        return store.factory

    @pytest.fixture
    def failing_provider(self) -> Iterator[LockProvider]:
        url = f"mongodb://127.0.0.1:{free_port()}/shedlock?timeout=300ms"
        if self.is_async:
            with BlockingLockProvider(lambda: AsyncMongoLockProvider(url)) as facade:
                yield facade
            forget_sockets()
        else:
            provider = MongoLockProvider(url)
            yield provider
            provider.close()

    @pytest.fixture
    def proxy(self, mongodb_server: MongoServer) -> Iterator[TcpProxy]:
        with TcpProxy(mongodb_server.address) as proxy:
            yield proxy

    @pytest.fixture
    def make_proxied_provider(self, store: MongoStore, proxy: TcpProxy) -> Iterator[LockProviderFactory]:
        with ExitStack() as resources:
            yield lambda: store.open(resources, via=proxy.address)
        if self.is_async:
            forget_sockets()

    @pytest.fixture
    def make_loop_provider(self, store: MongoStore) -> Callable[[], AsyncLockProvider]:
        return store.async_provider

    def delete_record(self, provider: LockProvider, name: str) -> None:
        self.store_of_class.delete(name)

    def stalled(self, name: str) -> AbstractContextManager[None]:
        return self.store_of_class.stalled()
