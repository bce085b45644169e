"""The contract on Azure Blob."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from shedlock_py.providers.azblob import AsyncAzureBlobLockProvider, AzureBlobLockProvider
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
from tests.support.azblob import AzuriteServer, blob_url
from tests.support.ports import LOOPBACK, free_port


class AzureBlobStore(ByDateStore):
    """A prefix. ``via_proxy``: a proxy that can stall."""

    def __init__(self, server: AzuriteServer, kind: Any, *, via_proxy: bool) -> None:
        self._server = server
        self.prefix = f"locks-{uuid4().hex[:8]}"
        super().__init__(kind, partial(server.url, prefix=self.prefix), server.address, via_proxy=via_proxy)

    def delete(self, name: str) -> None:
        self._server.delete_all(f"{self.prefix}/{name}.json")


class AzureBlobContract(CasContract):
    kind: ClassVar[Any] = AzureBlobLockProvider
    herd: ClassVar[int] = 20
    """An attempt takes up to three requests."""

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> AzureBlobStore:
        server: AzuriteServer = request.getfixturevalue("azblob_server")
        return AzureBlobStore(server, cls.kind, via_proxy=cls.via_proxy)

    @staticmethod
    def in_write(name: str) -> str:
        return f'"name": "{name}"'

    @staticmethod
    def in_read(name: str) -> str:
        return f"/{name}.json"

    @pytest.fixture
    def unreachable(self) -> str:
        return blob_url((LOOPBACK, free_port())) + "&timeout=300ms"


class TestUrl(AzureBlobContract, NetworkContract):
    test_i3_a_dead_holder_blocks_for_at_most = HoldTimesContract.test_i3_a_dead_holder_blocks_for_at_most


class TestPromises(AzureBlobContract, EachPromise):
    """On a separate store: a prune reads each blob."""


@pytest.mark.slow(AS_KUBERNETES)
@without(TestUrl, TestPromises, BeforeStore)
class TestAllWithUrl(AzureBlobContract, LockProviderContract, PauseContract, ForkContract): ...


class TestAsyncUrl(AzureBlobContract, AsyncSample):
    kind = AsyncAzureBlobLockProvider


@pytest.mark.slow("cancels many requests")
@without(TestAsyncUrl)
class TestAsyncClient(AzureBlobContract, AsyncClient, LostRepliesContract, EventLoopContract):
    kind = AsyncAzureBlobLockProvider
    sends: ClassVar[int] = 4  # aiohttp sends a PUT twice if a connection breaks


@pytest.mark.matrix(SAME_PROGRAMS)
@without(TestAsyncUrl, TestAsyncClient)
class TestAsyncPrograms(
    AzureBlobContract, NetworkContract, AsyncLockProviderContract, ProcessContract, AsyncPauseContract
):
    kind = AsyncAzureBlobLockProvider
    sends: ClassVar[int] = 4


@pytest.mark.slow(MANY_PROCESSES)
class TestProcesses(AzureBlobContract, ProcessContract): ...


class TestStallingStore(AzureBlobContract, StallingStoreContract):
    via_proxy = True


class TestAsyncStallingStore(AzureBlobContract, StallingStoreContract):
    kind = AsyncAzureBlobLockProvider
    via_proxy = True
