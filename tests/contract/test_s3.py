"""The contract on S3."""

from __future__ import annotations

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
    HoldTimesContract,
    LockProviderContract,
    NetworkContract,
    PauseContract,
    ProcessContract,
    StallingStoreContract,
)
from shedlock_py.testing.contract.network import LostRepliesContract
from tests.contract.parts import (
    AS_KUBERNETES,
    MANY_PROCESSES,
    SAME_PROGRAMS,
    AsyncClient,
    AsyncSample,
    BeforeStore,
    EachPromise,
    without,
)
from tests.contract.stores import ByDateStore, CasContract
from tests.support.ports import free_port
from tests.support.s3 import S3Server


class S3Store(ByDateStore):
    """A prefix. ``via_proxy``: a proxy that can stall."""

    def __init__(self, server: S3Server, kind: Any, *, via_proxy: bool) -> None:
        self._server = server
        self.prefix = f"locks-{uuid4().hex[:8]}"
        super().__init__(kind, partial(server.url, prefix=self.prefix), server.address, via_proxy=via_proxy)

    def delete(self, name: str) -> None:
        self._server.delete_all(f"{self.prefix}/{name}.json")


class S3Contract(CasContract):
    kind: ClassVar[Any] = S3LockProvider
    herd: ClassVar[int] = 20
    """An attempt takes up to three requests."""

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> S3Store:
        server: S3Server = request.getfixturevalue("s3_server")
        return S3Store(server, cls.kind, via_proxy=cls.via_proxy)

    @staticmethod
    def in_write(name: str) -> str:
        return f'"name": "{name}"'

    @staticmethod
    def in_read(name: str) -> str:
        return f"/{name}.json"

    @pytest.fixture
    def unreachable(self) -> str:
        return f"s3://locks?timeout=300ms&region=eu-west-1&endpoint=http://127.0.0.1:{free_port()}"


class TestUrl(S3Contract, NetworkContract, HoldTimesContract): ...


class TestPromises(S3Contract, EachPromise):
    """On a separate store: a prune reads each object."""


@pytest.mark.slow(AS_KUBERNETES)
@without(TestUrl, TestPromises, BeforeStore)
class TestAllWithUrl(S3Contract, LockProviderContract, PauseContract, ForkContract): ...


class TestAsyncUrl(S3Contract, AsyncSample):
    kind = AsyncS3LockProvider


@pytest.mark.slow("DynamoDB tries the same client")
@without(TestAsyncUrl)
class TestAsyncClient(S3Contract, AsyncClient, LostRepliesContract, EventLoopContract):
    kind = AsyncS3LockProvider
    sends: ClassVar[int] = 4  # aiohttp sends a PUT twice if a connection breaks


@pytest.mark.matrix(SAME_PROGRAMS)
@without(TestAsyncUrl, TestAsyncClient)
class TestAsyncPrograms(S3Contract, NetworkContract, AsyncLockProviderContract, ProcessContract, AsyncPauseContract):
    kind = AsyncS3LockProvider
    sends: ClassVar[int] = 4  # aiohttp sends a PUT twice if a connection breaks


@pytest.mark.slow(MANY_PROCESSES)
class TestProcesses(S3Contract, ProcessContract): ...


class TestStallingStore(S3Contract, StallingStoreContract):
    via_proxy = True


class TestAsyncStallingStore(S3Contract, StallingStoreContract):
    kind = AsyncS3LockProvider
    via_proxy = True
