"""What the contract needs to know about Redis: one key prefix for a class of tests, two providers on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast
from uuid import uuid4

import pytest

from shedlock_py import LockProvider
from shedlock_py.testing.contract import BlockingLockProvider, LockProviderFactory
from shedlock_py.testing.proxy import TcpProxy
from tests.support.redis import RedisCluster, RedisEndpoint


class RedisStore:
    """Lock records of their own on one or more servers, and the providers of one class of tests.

    ``make`` makes a provider, sync or async, with the given key prefix.
    """

    def __init__(
        self, servers: Sequence[RedisEndpoint | RedisCluster], make: Callable[..., Any], *, is_async: bool
    ) -> None:
        self.servers = servers
        self.prefix = f"test-{uuid4().hex[:8]}"
        self._make = make
        self.factory: Callable[[], Any] = partial(make, key_prefix=self.prefix)
        self._is_async = is_async
        self._resources = ExitStack()
        self._providers: list[LockProvider] = []
        if len(servers) > 1:
            self._start_quorum(self.provider(0))

    def provider(self, number: int) -> LockProvider:
        """The first provider, the second one, …; the same for all tests of the class, as in an application."""
        while len(self._providers) <= number:
            self._providers.append(self.open(self._resources, self._make))
        return self._providers[number]

    def _start_quorum(self, provider: Any) -> None:
        if self._is_async:
            provider.run(provider.async_provider.start_new_quorum())
        else:
            provider.start_new_quorum()

    def open(self, resources: ExitStack, make: Callable[..., Any]) -> LockProvider:
        """Another provider, which is closed with ``resources``."""
        factory = partial(make, key_prefix=self.prefix)
        if self._is_async:
            return resources.enter_context(BlockingLockProvider(factory))
        provider: Any = factory()
        resources.callback(provider.close)
        return cast("LockProvider", provider)

    def delete(self, name: str) -> None:
        for server in self.servers:
            with server.client() as client:
                client.delete(f"{self.prefix}:{{{name}}}")

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """The server holds back what would write."""
        with ExitStack() as stack:
            for server in self.servers:
                client = stack.enter_context(server.client())
                client.execute_command("CLIENT PAUSE", 60_000, "WRITE")
                stack.callback(client.execute_command, "CLIENT UNPAUSE")
            yield

    def close(self) -> None:
        self._resources.close()
        for server in self.servers:
            with server.client() as client:
                for key in client.scan_iter(match=f"{self.prefix}:*", count=1000):
                    client.delete(key)


class RedisContract:
    """The hooks of the contract for a store on Redis; subclasses say how providers are made."""

    @pytest.fixture(autouse=True)
    def _remember(self, store: RedisStore) -> None:
        self.store = store

    @pytest.fixture
    def make_provider(self, store: RedisStore) -> LockProviderFactory:
        numbers = iter(range(10))
        return lambda: store.provider(next(numbers))

    @pytest.fixture
    def process_factory(self, store: RedisStore) -> Any:
        return store.factory

    @pytest.fixture
    def proxy(self, store: RedisStore) -> Iterator[TcpProxy]:
        server: Any = store.servers[0]
        with TcpProxy(server.address) as proxy:
            yield proxy

    @pytest.fixture
    def make_loop_provider(self, store: RedisStore) -> Any:
        return store.factory

    def delete_record(self, provider: LockProvider, name: str) -> None:
        self.store.delete(name)

    def stalled(self, name: str) -> Any:
        return self.store.stalled()
