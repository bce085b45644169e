"""Stores for the contract: lock records for a class of tests, and two providers on them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import pytest

from shedlock_py import AsyncLockProvider, LockProvider
from shedlock_py.providers.kit import AsyncProgramProvider
from shedlock_py.testing.contract import BlockingLockProvider, ContractBase, LockProviderFactory
from shedlock_py.testing.contract.network import warmed_up
from shedlock_py.testing.proxy import Address, TcpProxy
from tests.support import tiers
from tests.support.polling import wait_until

BUSY = "20s"
"""A time limit for tests that do not wait for its end: even a busy machine does not reach it."""


class ContractStore(ABC):
    """The lock records and the providers of one class of tests.

    :ivar kind: the providers' class. It gets ``place``, for example a URL, and ``options``.
    """

    def __init__(self, kind: Any, place: Any, options: dict[str, Any]) -> None:
        self.kind, self.place, self.options = kind, place, options
        self.is_async = issubclass(kind, AsyncProgramProvider)
        self._resources = ExitStack()
        self._providers: list[LockProvider] = []

    def provider(self, number: int) -> LockProvider:
        """Return the provider of this number. As in an application, all tests of the class share it."""
        while len(self._providers) <= number:
            self._providers.append(self.open(self._resources))
        return self._providers[number]

    def open(self, resources: ExitStack, via: Address | None = None) -> LockProvider:
        """Open another provider, and close it with ``resources``. Wrap an async provider in a sync facade."""
        make, close = self.maker(via)
        if self.is_async:
            facade = resources.enter_context(BlockingLockProvider(make))
            if close is not None:
                resources.callback(lambda: facade.run(close()))
            return facade
        provider: Any = make()
        resources.callback(close or provider.close)
        return provider  # type: ignore[no-any-return]  # of a class that a test names

    @abstractmethod
    def maker(self, via: Address | None) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
        """Return a function that makes a provider, behind a proxy if given, and a function that closes a user's
        client."""

    @property
    def factory(self) -> Callable[[], Any]:
        """Return a factory for another process or event loop."""
        return partial(self.kind, self.place, **self.options)

    @property
    @abstractmethod
    def address(self) -> Address:
        """Address of the server, for a proxy."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a record by hand."""

    @abstractmethod
    def stalled(self, name: str) -> AbstractContextManager[None]:
        """Stop the store's replies to writes of this record inside the block."""

    def close(self) -> None:
        self._resources.close()


class StallingStore(ContractStore):
    """A store that stalls through a proxy, if ``via_proxy`` puts the providers behind it."""

    def __init__(self, kind: Any, place: Any, options: dict[str, Any], address: Address, *, via_proxy: bool) -> None:
        super().__init__(kind, place, options)
        self._address = address
        self._proxy = self._resources.enter_context(TcpProxy(address)) if via_proxy else None

    @property
    def address(self) -> Address:
        return self._address

    def through(self, via: Address | None) -> Address | None:
        """Return the address that a provider connects to: ``via``, or the stalling proxy. None for the server
        itself."""
        return via or (self._proxy.address if self._proxy else None)

    @contextmanager
    def stalled(self, name: str) -> Iterator[None]:
        assert self._proxy, "only a store behind a proxy can be made to wait"
        self._proxy.stall()
        try:
            yield
        finally:
            self._proxy.resume()


EXACT = {"clock_error": "0s"}
"""The test server shares this machine's clock."""


class ByDateStore(StallingStore):
    """A store with one server. Its time is the ``Date`` header's.

    :param url: returns the URL of its lock records, behind a proxy if it gets ``via``.
    :param via_proxy: providers are behind a proxy that can stall.
    """

    def __init__(self, kind: Any, url: Callable[..., str], address: Address, *, via_proxy: bool) -> None:
        self._url = url
        super().__init__(kind, url(), {**EXACT, "timeout": BUSY}, address, via_proxy=via_proxy)

    def maker(self, via: Address | None) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
        return partial(self.kind, self._url(via=self.through(via)), **self.options), None


class WritesProxy(TcpProxy):
    """Match lock names in writes only.

    :param in_write: returns the form of the lock name in a request that writes its record.
    """

    def __init__(self, upstream: Address, in_write: Callable[[str], str]) -> None:
        super().__init__(upstream)
        self._in_write = in_write

    def drop_replies_to(self, marker: str, times: int = 1, *, skip: int = 0) -> None:
        super().drop_replies_to(self._in_write(marker), times, skip=skip)

    def hold(self, marker: str, *, skip: int = 0) -> None:
        super().hold(self._in_write(marker), skip=skip)


class StoreContract(ContractBase):
    """The hooks of the contract. Subclasses choose the store and the suites."""

    users_client: ClassVar[bool] = False
    """Providers get an application's client or engine."""
    moments: ClassVar[range] = range(0, 50, 1 if tiers.runs("full") else 4)
    """Each cancellation may break a connection, and the next attempt opens a new one."""

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> ContractStore:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, request: pytest.FixtureRequest) -> Iterator[ContractStore]:
        store = cls.open_store(request)
        yield store
        store.close()

    @pytest.fixture(autouse=True)
    def _remember(self, store: ContractStore) -> None:
        self.store_of_class = store

    @pytest.fixture
    def make_provider(self, store: ContractStore) -> LockProviderFactory:
        numbers = iter(range(10))
        return lambda: store.provider(next(numbers))

    @pytest.fixture
    def process_factory(self, store: ContractStore) -> Any:
        return store.factory

    @classmethod
    def make_proxy(cls, store: ContractStore) -> TcpProxy:
        return TcpProxy(store.address)

    @pytest.fixture(scope="class")
    @classmethod
    def proxy_of_class(cls, store: ContractStore) -> Iterator[TcpProxy]:
        with cls.make_proxy(store) as proxy:
            yield proxy

    @pytest.fixture(scope="class")
    @classmethod
    def proxied_provider_of_class(cls, store: ContractStore, proxy_of_class: TcpProxy) -> Iterator[LockProvider]:
        with ExitStack() as resources:
            yield warmed_up(store.open(resources, via=proxy_of_class.address), "warm")

    @pytest.fixture
    def proxy(self, proxy_of_class: TcpProxy) -> Iterator[TcpProxy]:
        yield proxy_of_class
        TcpProxy.drop_replies_to(proxy_of_class, "", 0)
        TcpProxy.hold(proxy_of_class, "")

    @pytest.fixture
    def proxied_provider(self, proxied_provider_of_class: LockProvider, proxy: TcpProxy) -> LockProvider:
        return proxied_provider_of_class

    @pytest.fixture
    def unused_proxy(self, store: ContractStore) -> Iterator[TcpProxy]:
        with self.make_proxy(store) as proxy:
            yield proxy

    @pytest.fixture
    def make_proxied_provider(self, store: ContractStore, unused_proxy: TcpProxy) -> Iterator[LockProviderFactory]:
        with ExitStack() as resources:
            yield lambda: store.open(resources, via=unused_proxy.address)

    @pytest.fixture
    def make_loop_provider(self, store: ContractStore) -> Callable[[], AsyncLockProvider]:
        return store.factory

    @pytest.fixture
    def unreachable(self) -> Any:
        """Return the place of a store that does not reply."""
        raise NotImplementedError

    @pytest.fixture
    def failing_provider(self, store: ContractStore, unreachable: Any) -> Iterator[LockProvider]:
        if store.is_async:
            before = set(threading.enumerate())
            with BlockingLockProvider(lambda: store.kind(unreachable)) as facade:
                yield facade
                # aiosqlite ends the thread of a failed connect without waiting. The thread must find the event loop
                # open.
                wait_until(lambda: not any("_connection_worker" in t.name for t in {*threading.enumerate()} - before))
        else:
            provider = store.kind(unreachable)
            yield provider
            provider.close()

    def delete_record(self, provider: LockProvider, name: str) -> None:
        self.store_of_class.delete(name)

    def stalled(self, name: str) -> AbstractContextManager[None]:
        return self.store_of_class.stalled(name)


class CasContract(StoreContract):
    """The hooks for a compare-and-swap store. Each write follows a read; ``proxy`` matches lock names in writes.

    :ivar via_proxy: providers are behind a proxy that can stall.
    """

    requests_before_take_over: ClassVar[int] = 0
    requests_before_force_release: ClassVar[int] = 0
    requests_before_forget_fire_time: ClassVar[int] = 0
    via_proxy: ClassVar[bool] = False
    clock_resolution: ClassVar[float] = 2.1
    kept_longer: ClassVar[timedelta] = timedelta(seconds=3)
    """The Date header is cut to seconds, and a round trip takes time on a busy machine."""

    @staticmethod
    def in_write(name: str) -> str:
        """Return a text that only requests that write this record contain."""
        raise NotImplementedError

    @staticmethod
    def in_read(name: str) -> str:
        """Return a text that every request that reads this record contains."""
        raise NotImplementedError

    def drop_reply_to_skip(self, proxy: TcpProxy, name: str) -> None:
        TcpProxy.drop_replies_to(proxy, self.in_read(name))  # a skip only reads

    @classmethod
    def make_proxy(cls, store: ContractStore) -> TcpProxy:
        return WritesProxy(store.address, cls.in_write)
