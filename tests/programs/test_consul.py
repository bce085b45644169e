"""The contract suite on the example of a compare-and-swap store, with a real Consul."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote
from uuid import uuid4

import pytest

from examples.providers.consul import AsyncConsulLockProvider, ConsulLockProvider
from shedlock_py import LockProvider, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.testing.contract import (
    AsyncLockProviderContract,
    EventLoopContract,
    ForkContract,
    LockProviderContract,
    NetworkContract,
    PauseContract,
    ProcessContract,
    StallingStoreContract,
)
from shedlock_py.testing.contract.base import acquired, eventually
from tests.contract.stores import ByDateStore, CasContract
from tests.support.consul import ConsulServer
from tests.support.etcd import EtcdServer
from tests.support.ports import free_port
from tests.support.scripts import PROJECT

pytestmark = pytest.mark.matrix("Consul is in an example only: the JSON file shows the kit")


class ConsulStore(ByDateStore):
    """Keys under a prefix. ``via_proxy``: a proxy that can stall."""

    def __init__(self, server: ConsulServer, kind: Any, *, via_proxy: bool) -> None:
        self._server = server
        self._prefix = f"contract-{uuid4().hex[:6]}"
        super().__init__(kind, partial(server.url, self._prefix), server.address, via_proxy=via_proxy)

    def delete(self, name: str) -> None:
        self._server.delete(f"{self._prefix}/{quote(name, safe='')}.json")


class ConsulContract(CasContract):
    kind: ClassVar[Any] = ConsulLockProvider
    herd: ClassVar[int] = 50
    most_connections: ClassVar[int] = 1000
    """Each command has its own connection."""

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> ConsulStore:
        return ConsulStore(request.getfixturevalue("consul_server"), cls.kind, via_proxy=cls.via_proxy)

    @staticmethod
    def in_write(name: str) -> str:
        return f'/{name}.json","Value"'

    @staticmethod
    def in_read(name: str) -> str:
        return f"/{name}.json?"

    @pytest.fixture
    def unreachable(self) -> str:
        return f"consul://127.0.0.1:{free_port()}"


@pytest.mark.matrix("one more store on the compare-and-swap kit, which etcd, S3 and Kubernetes try in `make test`")
class TestConsul(ConsulContract, NetworkContract, LockProviderContract, ProcessContract, ForkContract, PauseContract):
    def test_prune_deletes_the_key(self, provider: LockProvider, name: str) -> None:
        provider.release(acquired(provider, LockRequest(name, "1m")))
        eventually(lambda: provider.prune(0) and provider.record(name) is None, "a record that is old enough")
        acquired(provider, LockRequest(name, "1m"))


@pytest.mark.matrix("the programs are those of TestConsul, and the JSON file tries kit.ThreadedClient")
class TestAsyncConsul(ConsulContract, AsyncLockProviderContract, EventLoopContract):
    kind = AsyncConsulLockProvider


@pytest.mark.matrix("as TestConsul")
class TestStallingConsul(ConsulContract, StallingStoreContract):
    via_proxy = True


def test_it_has_120_lines_at_most() -> None:
    assert len((PROJECT / "examples" / "providers" / "consul.py").read_text().splitlines()) <= 120


@pytest.mark.matrix("as TestConsul")
@pytest.mark.parametrize("may_read", [False, True])
def test_a_token_without_rights_is_an_error_that_says_what_to_do(consul_server: ConsulServer, may_read: bool) -> None:
    token = consul_server.token_that_reads() if may_read else "wrong"
    provider = ConsulLockProvider(consul_server.url("locks", token=token))
    with pytest.raises(ProviderError, match="needs a token that may read and write") as caught:
        provider.acquire(LockRequest("job", "1h"))
    assert not isinstance(caught.value, ProviderUnreachable)
    assert token not in str(caught.value)


def test_a_server_that_is_not_consul_is_an_error(etcd_server: EtcdServer) -> None:
    provider = ConsulLockProvider("consul://{}:{}".format(*etcd_server.address))
    with pytest.raises(ProviderError):
        provider.acquire(LockRequest("job", "1h"))
