"""The contract on S3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from shedlock_py.providers.s3 import AsyncS3LockProvider, S3LockProvider
from shedlock_py.testing.contract import (
    AsyncLockProviderContract,
    AsyncPauseContract,
    EventLoopContract,
    ForkContract,
    LockProviderContract,
    NetworkContract,
    PauseContract,
    ProcessContract,
    StallingStoreContract,
)
from shedlock_py.testing.proxy import Address, TcpProxy
from tests.contract.stores import StallingStore, StoreContract, WritesProxy
from tests.support.ports import free_port
from tests.support.s3 import S3Server


class S3Store(StallingStore):
    """A prefix of its own. ``via_proxy``: a proxy that can stall."""

    def __init__(self, server: S3Server, kind: Any, *, via_proxy: bool) -> None:
        self._server = server
        self.prefix = f"locks-{uuid4().hex[:8]}"
        super().__init__(
            kind, server.url(prefix=self.prefix), {"clock_error": "0s"}, server.address, via_proxy=via_proxy
        )

    def maker(self, via: Address | None) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
        address = self.through(via)
        return partial(self.kind, self._server.url(via=address, prefix=self.prefix), **self.options), None

    def delete(self, name: str) -> None:
        self._server.delete_all(f"{self.prefix}/{name}.json")


def _in_content(name: str) -> str:
    return f'"name": "{name}"'


class S3Contract(StoreContract):
    requests_before_take_over: ClassVar[int] = 0  # the proxy looks at writes
    requests_before_force_release: ClassVar[int] = 0
    kind: ClassVar[Any] = S3LockProvider
    via_proxy: ClassVar[bool] = False
    clock_resolution: ClassVar[float] = 2.1
    kept_longer: ClassVar[timedelta] = timedelta(seconds=3)
    """The Date header is cut to seconds; and a round trip, on a busy machine."""

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> S3Store:
        server: S3Server = request.getfixturevalue("s3_server")
        return S3Store(server, cls.kind, via_proxy=cls.via_proxy)

    def drop_reply_to_skip(self, proxy: TcpProxy, name: str) -> None:
        TcpProxy.drop_replies_to(proxy, f"/{name}.json")  # a skip only reads

    @pytest.fixture
    def proxy(self, store: S3Store) -> Iterator[TcpProxy]:
        with WritesProxy(store.address, _in_content) as proxy:
            yield proxy

    @pytest.fixture
    def unreachable(self) -> str:
        return f"s3://locks?timeout=300ms&region=eu-west-1&endpoint=http://127.0.0.1:{free_port()}"


class TestUrl(S3Contract, NetworkContract, LockProviderContract, ProcessContract, ForkContract, PauseContract): ...


class TestAsyncUrl(S3Contract, NetworkContract, AsyncLockProviderContract, ProcessContract, EventLoopContract):
    kind = AsyncS3LockProvider
    sends: ClassVar[int] = 4  # aiohttp sends a PUT twice if a connection breaks


class TestAsyncPause(S3Contract, AsyncPauseContract):
    kind = AsyncS3LockProvider


class TestStallingStore(S3Contract, StallingStoreContract):
    via_proxy = True


class TestAsyncStallingStore(S3Contract, StallingStoreContract):
    kind = AsyncS3LockProvider
    via_proxy = True
