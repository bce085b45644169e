"""The contract on DynamoDB."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import pytest

from shedlock_py.providers.dynamodb import AsyncDynamoDBLockProvider, DynamoDBLockProvider
from shedlock_py.testing.contract import (
    AsyncLockProviderContract,
    AsyncPauseContract,
    EventLoopContract,
    ExclusionContract,
    ForkContract,
    GivingBackContract,
    HoldTimesContract,
    LockProviderContract,
    NetworkContract,
    PauseContract,
    ProcessContract,
    StallingStoreContract,
)
from shedlock_py.testing.contract.fencing import FencingContract
from shedlock_py.testing.contract.network import LostRepliesContract
from tests.contract.parts import (
    MANY_PROCESSES,
    SAME_PROGRAMS,
    AsyncClientBriefly,
    BeforeStore,
    EachPromise,
    ManyRequests,
    without,
)
from tests.contract.stores import ByDateStore, StoreContract
from tests.support.dynamodb import REGION, DynamoDBServer
from tests.support.ports import free_port


class DynamoDBStore(ByDateStore):
    """A table. ``via_proxy``: a proxy that can stall."""

    def __init__(self, server: DynamoDBServer, kind: Any, *, via_proxy: bool) -> None:
        self._server = server
        self._table = server.create_table()
        super().__init__(kind, partial(server.url, self._table), server.address, via_proxy=via_proxy)

    def delete(self, name: str) -> None:
        self._server.delete(self._table, name)


class DynamoDBContract(StoreContract):
    kind: ClassVar[Any] = DynamoDBLockProvider
    via_proxy: ClassVar[bool] = False
    herd: ClassVar[int] = 20
    clock_resolution: ClassVar[float] = 2.3
    kept_longer: ClassVar[timedelta] = timedelta(seconds=3)
    """Writer and reader cut the Date header to seconds, and a round trip takes time on a busy machine."""

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> DynamoDBStore:
        server: DynamoDBServer = request.getfixturevalue("dynamodb_server")
        return DynamoDBStore(server, cls.kind, via_proxy=cls.via_proxy)

    @pytest.fixture
    def unreachable(self) -> str:
        return f"dynamodb://locks?region={REGION}&endpoint=http://127.0.0.1:{free_port()}&timeout=300ms"


@without(ManyRequests)
class TestUrl(
    DynamoDBContract,
    EachPromise,
    ExclusionContract,
    HoldTimesContract,
    FencingContract,
    GivingBackContract,
    NetworkContract,
): ...


@pytest.mark.slow("MongoDB and Redis show it in make test")
@without(TestUrl, BeforeStore)
class TestAllWithUrl(DynamoDBContract, LockProviderContract, PauseContract, ForkContract): ...


class TestAsyncUrl(DynamoDBContract, AsyncClientBriefly, LostRepliesContract, EventLoopContract):
    kind = AsyncDynamoDBLockProvider


@pytest.mark.matrix(SAME_PROGRAMS)
@without(TestAsyncUrl)
class TestAsyncPrograms(
    DynamoDBContract, NetworkContract, AsyncLockProviderContract, ProcessContract, AsyncPauseContract
):
    kind = AsyncDynamoDBLockProvider


@pytest.mark.slow(MANY_PROCESSES)
class TestProcesses(DynamoDBContract, ProcessContract): ...


class TestStallingStore(DynamoDBContract, StallingStoreContract):
    via_proxy = True


class TestAsyncStallingStore(DynamoDBContract, StallingStoreContract):
    kind = AsyncDynamoDBLockProvider
    via_proxy = True
