"""The contract on ZooKeeper."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from shedlock_py.providers.zookeeper import AsyncZooKeeperLockProvider, ZooKeeperLockProvider
from shedlock_py.testing.contract import (
    AsyncLockProviderContract,
    AsyncPauseContract,
    EventLoopContract,
    ExclusionContract,
    ForkContract,
    HoldTimesContract,
    LockProviderContract,
    NetworkContract,
    PauseContract,
    ProcessContract,
    StallingStoreContract,
)
from shedlock_py.testing.contract.asynchronous import CancellationContract
from shedlock_py.testing.contract.network import LostRepliesContract
from shedlock_py.testing.contract.threads import ThreadsContract
from tests.contract.parts import (
    AS_KUBERNETES,
    MANY_PROCESSES,
    SAME_PROGRAMS,
    AsyncClient,
    BeforeStore,
    EachPromise,
    without,
)
from tests.contract.stores import ByDateStore, CasContract, ContractStore, WritesProxy
from tests.support.ports import free_port
from tests.support.zookeeper import ZooKeeperServer


class ZooKeeperStore(ByDateStore):
    """Znodes under a path. ``via_proxy``: a proxy that can stall."""

    def __init__(self, server: ZooKeeperServer, kind: Any, *, via_proxy: bool) -> None:
        self._server = server
        self._path = f"/locks-{uuid4().hex[:6]}"
        super().__init__(kind, partial(server.url, path=self._path), server.address, via_proxy=via_proxy)

    def delete(self, name: str) -> None:
        with self._server.client() as client:
            client.delete(f"{self._path}/{name}", recursive=True)


class ZooKeeperProxy(WritesProxy):
    def deliver(self) -> None:
        """When a session connects again, ZooKeeper ends its former connection, and a late request on it is lost."""
        with suppress(OSError):
            super().deliver()


class ZooKeeperContract(CasContract):
    kind: ClassVar[Any] = ZooKeeperLockProvider
    clock_resolution: ClassVar[float] = 0.01
    kept_longer: ClassVar[timedelta] = timedelta(seconds=1)
    """The time is exact to a millisecond, and a round trip takes time on a busy machine."""

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> ZooKeeperStore:
        server: ZooKeeperServer = request.getfixturevalue("zookeeper_server")
        return ZooKeeperStore(server, cls.kind, via_proxy=cls.via_proxy)

    @classmethod
    def make_proxy(cls, store: ContractStore) -> ZooKeeperProxy:
        return ZooKeeperProxy(store.address, cls.in_write)

    @staticmethod
    def in_write(name: str) -> str:
        return f"/{name}/"  # the child that a transaction creates or checks

    @staticmethod
    def in_read(name: str) -> str:
        return f"/{name}"

    @pytest.fixture
    def unreachable(self) -> str:
        return f"zookeeper://127.0.0.1:{free_port()}?timeout=300ms"


class TestUrl(ZooKeeperContract, LostRepliesContract, ForkContract):
    test_i3_a_dead_holder_blocks_for_at_most = HoldTimesContract.test_i3_a_dead_holder_blocks_for_at_most
    test_i4_minimum_hold_survives_the_release = HoldTimesContract.test_i4_minimum_hold_survives_the_release
    test_an_expired_lease_cannot_be_extended = HoldTimesContract.test_an_expired_lease_cannot_be_extended
    test_a_lease_may_last_3_milliseconds_or_10_years = (
        HoldTimesContract.test_a_lease_may_last_3_milliseconds_or_10_years
    )
    test_i1_one_winner_when_a_lock_gets_free = ThreadsContract.test_i1_one_winner_when_a_lock_gets_free


class TestPromises(ZooKeeperContract, EachPromise):
    """With separate znodes: a prune reads each record."""


@pytest.mark.slow(AS_KUBERNETES)
@without(TestUrl, TestPromises, BeforeStore)
class TestAllWithUrl(ZooKeeperContract, NetworkContract, LockProviderContract, PauseContract): ...


class TestAsyncUrl(ZooKeeperContract, EventLoopContract):
    """The sync client works in threads here."""

    kind = AsyncZooKeeperLockProvider
    facade = CancellationContract.facade
    _is_clean_after = CancellationContract._is_clean_after
    test_i1_a_second_lock_is_refused = ExclusionContract.test_i1_a_second_lock_is_refused
    test_i12_a_cancelled_acquire_is_undone = CancellationContract.test_i12_a_cancelled_acquire_is_undone
    test_i3_the_end_of_the_event_loop_loses_no_release = (
        CancellationContract.test_i3_the_end_of_the_event_loop_loses_no_release
    )
    test_i1_a_herd_on_one_event_loop_is_skipped = CancellationContract.test_i1_a_herd_on_one_event_loop_is_skipped


@pytest.mark.matrix(SAME_PROGRAMS)
@without(TestAsyncUrl)
class TestAsyncPrograms(
    ZooKeeperContract,
    AsyncClient,
    NetworkContract,
    AsyncLockProviderContract,
    ProcessContract,
    AsyncPauseContract,
):
    kind = AsyncZooKeeperLockProvider


@pytest.mark.slow(MANY_PROCESSES)
class TestProcesses(ZooKeeperContract, ProcessContract): ...


class TestStallingStore(ZooKeeperContract, StallingStoreContract):
    via_proxy = True


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAsyncStallingStore(ZooKeeperContract, StallingStoreContract):
    kind = AsyncZooKeeperLockProvider
    via_proxy = True
