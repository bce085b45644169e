"""The contract on etcd."""

from __future__ import annotations

from base64 import b64encode
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import httpx
import pytest

from shedlock_py.providers.etcd import AsyncEtcdLockProvider, EtcdLockProvider
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
from shedlock_py.testing.contract.threads import ThreadsContract
from tests.contract.parts import (
    AS_KUBERNETES,
    MANY_PROCESSES,
    SAME_PROGRAMS,
    AsyncClientBriefly,
    BeforeStore,
    EachPromise,
    without,
)
from tests.contract.stores import ByDateStore, CasContract
from tests.support.etcd import EtcdServer
from tests.support.ports import free_port


class EtcdStore(ByDateStore):
    """Keys under a prefix. ``via_proxy``: a proxy that can stall."""

    def __init__(self, server: EtcdServer, kind: Any, *, via_proxy: bool) -> None:
        self._server = server
        # Its length is a multiple of three, so that the key's base64 contains the name's base64.
        self._prefix = f"/lock{uuid4().hex[:6]}/"
        super().__init__(kind, partial(server.url, prefix=self._prefix), server.address, via_proxy=via_proxy)

    def delete(self, name: str) -> None:
        self._server.ask("/v3/kv/deleterange", key=b64encode((self._prefix + name).encode()).decode())


def _encoded(name: str) -> str:
    return b64encode(name.encode()).decode()


class EtcdContract(CasContract):
    kind: ClassVar[Any] = EtcdLockProvider
    herd: ClassVar[int] = 20
    """An attempt takes up to three requests."""

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> EtcdStore:
        server: EtcdServer = request.getfixturevalue("etcd_server")
        return EtcdStore(server, cls.kind, via_proxy=cls.via_proxy)

    @staticmethod
    def in_write(name: str) -> str:
        key = _encoded(name)
        body = httpx.Request("POST", "http://etcd", json={"key": key, "target": "MOD"}).content.decode()
        return body[body.index(key) : -1]  # httpx writes spaces before 0.28

    @staticmethod
    def in_read(name: str) -> str:
        return _encoded(name)

    @pytest.fixture
    def unreachable(self) -> str:
        return f"etcd://127.0.0.1:{free_port()}?timeout=300ms"


class TestUrl(EtcdContract, NetworkContract, HoldTimesContract, ForkContract):
    test_i1_one_winner_when_a_lock_gets_free = ThreadsContract.test_i1_one_winner_when_a_lock_gets_free


class TestPromises(EtcdContract, EachPromise):
    """With separate keys: a prune reads each record."""


@pytest.mark.slow(AS_KUBERNETES)
@without(TestUrl, TestPromises, BeforeStore)
class TestAllWithUrl(EtcdContract, LockProviderContract, PauseContract): ...


class TestAsyncUrl(EtcdContract, AsyncClientBriefly, LostRepliesContract, EventLoopContract):
    kind = AsyncEtcdLockProvider


@pytest.mark.matrix(SAME_PROGRAMS)
@without(TestAsyncUrl)
class TestAsyncPrograms(EtcdContract, NetworkContract, AsyncLockProviderContract, ProcessContract, AsyncPauseContract):
    kind = AsyncEtcdLockProvider


@pytest.mark.slow(MANY_PROCESSES)
class TestProcesses(EtcdContract, ProcessContract): ...


class TestStallingStore(EtcdContract, StallingStoreContract):
    via_proxy = True


class TestAsyncStallingStore(EtcdContract, StallingStoreContract):
    kind = AsyncEtcdLockProvider
    via_proxy = True
