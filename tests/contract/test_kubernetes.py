"""The contract on Kubernetes."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from shedlock_py.providers.kubernetes import AsyncKubernetesLockProvider, KubernetesLockProvider
from shedlock_py.providers.kubernetes.names import object_name
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
from shedlock_py.testing.contract.network import LostRepliesContract
from tests.contract.parts import MANY_PROCESSES, SAME_PROGRAMS, AsyncClientBriefly, BeforeStore, without
from tests.contract.stores import ByDateStore, CasContract
from tests.support.kubernetes import KubernetesServer, in_write
from tests.support.ports import free_port


class KubernetesStore(ByDateStore):
    """A namespace. ``via_proxy``: a proxy that can stall. Without a proxy, providers use TLS."""

    def __init__(self, server: KubernetesServer, kind: Any, *, via_proxy: bool) -> None:
        self._server = server
        self._namespace = f"contract-{uuid4().hex[:6]}"
        super().__init__(kind, partial(server.url, self._namespace), server.plain, via_proxy=via_proxy)

    def delete(self, name: str) -> None:
        self._server.delete(self._namespace, name)


class KubernetesContract(CasContract):
    kind: ClassVar[Any] = KubernetesLockProvider
    herd: ClassVar[int] = 20

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> KubernetesStore:
        server: KubernetesServer = request.getfixturevalue("kubernetes_server")
        return KubernetesStore(server, cls.kind, via_proxy=cls.via_proxy)

    @staticmethod
    def in_write(name: str) -> str:
        return in_write(name)

    @staticmethod
    def in_read(name: str) -> str:
        return object_name(name)

    @pytest.fixture
    def unreachable(self, kubernetes_server: KubernetesServer) -> str:
        return kubernetes_server.url("default", via=("127.0.0.1", free_port())) + "&timeout=300ms"


@without(BeforeStore)
class TestUrl(KubernetesContract, NetworkContract, LockProviderContract, ForkContract, PauseContract):
    """This class tests the compare-and-swap programs; tests of other such stores leave them out."""


class TestAsyncUrl(KubernetesContract, AsyncClientBriefly, LostRepliesContract, EventLoopContract):
    kind = AsyncKubernetesLockProvider


@pytest.mark.matrix(SAME_PROGRAMS)
@without(TestAsyncUrl)
class TestAsyncPrograms(
    KubernetesContract, NetworkContract, AsyncLockProviderContract, ProcessContract, AsyncPauseContract
):
    kind = AsyncKubernetesLockProvider


@pytest.mark.slow(MANY_PROCESSES)
class TestProcesses(KubernetesContract, ProcessContract): ...


class TestStallingStore(KubernetesContract, StallingStoreContract):
    via_proxy = True


class TestAsyncStallingStore(KubernetesContract, StallingStoreContract):
    kind = AsyncKubernetesLockProvider
    via_proxy = True
