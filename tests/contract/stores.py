"""What the contract needs to know about a store: lock records for a class of tests, and two providers on them."""

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
"""A time limit for where no test waits for its end: a busy machine does not reach it."""


class ContractStore(ABC):
    """Lock records of their own, and the providers of one class of tests.

    :ivar kind: the class of the providers; they get ``place``, a URL for example, and ``options``.
    """

    def __init__(self, kind: Any, place: Any, options: dict[str, Any]) -> None:
        self.kind, self.place, self.options = kind, place, options
        self.is_async = issubclass(kind, AsyncProgramProvider)
        self._resources = ExitStack()
        self._providers: list[LockProvider] = []

    def provider(self, number: int) -> LockProvider:
        """The first provider, the second one, …; the same for all tests of the class, as in an application."""
        while len(self._providers) <= number:
            self._providers.append(self.open(self._resources))
        return self._providers[number]

    def open(self, resources: ExitStack, via: Address | None = None) -> LockProvider:
        """Another provider, which is closed with ``resources``. An async one is presented as a sync one."""
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
        """What makes a provider, through a proxy if there is one; and what closes its client, if that is the user's."""

    @property
    def factory(self) -> Callable[[], Any]:
        """The same store in another process, or on another event loop."""
        return partial(self.kind, self.place, **self.options)

    @property
    @abstractmethod
    def address(self) -> Address:
        """Where a proxy can be put in front."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a record by hand."""

    @abstractmethod
    def stalled(self, name: str) -> AbstractContextManager[None]:
        """While in the block, the store does not reply to writes of this record."""

    def close(self) -> None:
        self._resources.close()


class StallingStore(ContractStore):
    """A store whose server a proxy can make wait, if ``via_proxy`` puts the providers behind it."""

    def __init__(self, kind: Any, place: Any, options: dict[str, Any], address: Address, *, via_proxy: bool) -> None:
        super().__init__(kind, place, options)
        self._address = address
        self._proxy = self._resources.enter_context(TcpProxy(address)) if via_proxy else None

    @property
    def address(self) -> Address:
        return self._address

    def through(self, via: Address | None) -> Address | None:
        """Where a provider connects to: ``via``, or else the proxy that can stall; None: the server itself."""
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
"""The test server is on this machine: its clock is ours."""


class ByDateStore(StallingStore):
    """A store whose time is that of a ``Date`` header, from one server.

    :param url: returns the URL of its lock records, with a proxy in between if it gets ``via``.
    :param via_proxy: providers are behind a proxy that can stall.
    """

    def __init__(self, kind: Any, url: Callable[..., str], address: Address, *, via_proxy: bool) -> None:
        self._url = url
        super().__init__(kind, url(), {**EXACT, "timeout": BUSY}, address, via_proxy=via_proxy)

    def maker(self, via: Address | None) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
        return partial(self.kind, self._url(via=self.through(via)), **self.options), None


class WritesProxy(TcpProxy):
    """Finds lock names in writes only.

    :param in_write: what a request that writes a record has of the lock name.
    """

    def __init__(self, upstream: Address, in_write: Callable[[str], str]) -> None:
        super().__init__(upstream)
        self._in_write = in_write

    def drop_replies_to(self, marker: str, times: int = 1, *, skip: int = 0) -> None:
        super().drop_replies_to(self._in_write(marker), times, skip=skip)

    def hold(self, marker: str, *, skip: int = 0) -> None:
        super().hold(self._in_write(marker), skip=skip)


class StoreContract(ContractBase):
    """The hooks of the contract; subclasses say which store it is, and which suites it runs."""

    users_client: ClassVar[bool] = False
    """Providers get a client, or an engine, as an application has it."""
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
        """The place of a store that does not reply."""
        raise NotImplementedError

    @pytest.fixture
    def failing_provider(self, store: ContractStore, unreachable: Any) -> Iterator[LockProvider]:
        if store.is_async:
            before = set(threading.enumerate())
            with BlockingLockProvider(lambda: store.kind(unreachable)) as facade:
                yield facade
                # aiosqlite ends the thread of a failed connect without waiting; it must find the event loop open.
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
    """The hooks for a store that compares and swaps. Each write follows a read; ``proxy`` finds lock names in writes.

    :ivar via_proxy: providers are behind a proxy that can stall.
    """

    requests_before_take_over: ClassVar[int] = 0
    requests_before_force_release: ClassVar[int] = 0
    requests_before_forget_fire_time: ClassVar[int] = 0
    via_proxy: ClassVar[bool] = False
    clock_resolution: ClassVar[float] = 2.1
    kept_longer: ClassVar[timedelta] = timedelta(seconds=3)
    """The Date header is cut to seconds; and a round trip, on a busy machine."""

    @staticmethod
    def in_write(name: str) -> str:
        """What is in each request that writes the record of this name, and in no other."""
        raise NotImplementedError

    @staticmethod
    def in_read(name: str) -> str:
        """What is in each request that reads it."""
        raise NotImplementedError

    def drop_reply_to_skip(self, proxy: TcpProxy, name: str) -> None:
        TcpProxy.drop_replies_to(proxy, self.in_read(name))  # a skip only reads

    @classmethod
    def make_proxy(cls, store: ContractStore) -> TcpProxy:
        return WritesProxy(store.address, cls.in_write)
