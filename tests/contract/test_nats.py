"""The contract on NATS."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from shedlock_py.providers.nats import AsyncNatsLockProvider, NatsLockProvider
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
from shedlock_py.testing.contract.guarding import GuardContract
from shedlock_py.testing.contract.network import LostRepliesContract
from shedlock_py.testing.contract.threads import ThreadsContract
from tests.contract.parts import (
    AS_KUBERNETES,
    MANY_PROCESSES,
    SAME_PROGRAMS,
    AsyncClientBriefly,
    AsyncSample,
    BeforeStore,
    EachPromise,
    without,
)
from tests.contract.stores import ByDateStore, CasContract
from tests.support.nats import NatsServer
from tests.support.ports import free_port


class NatsStore(ByDateStore):
    """A bucket. ``via_proxy``: a proxy that can stall."""

    def __init__(self, server: NatsServer, kind: Any, *, via_proxy: bool) -> None:
        self._server, self._bucket = server, f"lock{uuid4().hex[:6]}"
        super().__init__(kind, partial(server.url, self._bucket), server.address, via_proxy=via_proxy)
        with closing(NatsLockProvider(server.url(self._bucket))) as provider:
            provider.create_schema()

    def delete(self, name: str) -> None:
        self._server.delete(self._bucket, name)


class NatsContract(CasContract):
    kind: ClassVar[Any] = NatsLockProvider
    herd: ClassVar[int] = 20
    """An attempt takes up to three requests."""
    clock_resolution: ClassVar[float] = 0.1
    kept_longer: ClassVar[timedelta] = timedelta(seconds=1)
    """The time of a reply is exact, but a round trip takes time on a busy machine."""

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> NatsStore:
        server: NatsServer = request.getfixturevalue("nats_server")
        return NatsStore(server, cls.kind, via_proxy=cls.via_proxy)

    @staticmethod
    def in_write(name: str) -> str:
        return f".{name} _INBOX"  # the subject of a write, and where its reply goes

    @staticmethod
    def in_read(name: str) -> str:
        return f'.{name}"'

    @pytest.fixture
    def unreachable(self) -> str:
        return f"nats://127.0.0.1:{free_port()}?timeout=300ms"


class TestUrl(NatsContract, LostRepliesContract, ForkContract):
    test_i1_one_winner_when_a_lock_gets_free = ThreadsContract.test_i1_one_winner_when_a_lock_gets_free


class OfTheGuard:
    """Decisions of the guard that Kubernetes and others show, too."""

    test_i8_a_lease_taken_over_keeps_value_and_exception = (
        GuardContract.test_i8_a_lease_taken_over_keeps_value_and_exception
    )
    test_i10_the_local_wall_clock_decides_nothing = GuardContract.test_i10_the_local_wall_clock_decides_nothing


@without(OfTheGuard)
class TestPromises(NatsContract, EachPromise):
    """With a separate bucket: a prune reads each record."""


@pytest.mark.slow(AS_KUBERNETES)
@without(TestUrl, TestPromises, BeforeStore)
class TestAllWithUrl(NatsContract, NetworkContract, LockProviderContract, PauseContract): ...


@without(AsyncSample)
class TestAsyncUrl(NatsContract, AsyncClientBriefly, EventLoopContract):
    """The sync client uses the async client, so that lost replies are the same for both."""

    kind = AsyncNatsLockProvider


@pytest.mark.matrix(SAME_PROGRAMS)
@without(TestAsyncUrl)
class TestAsyncPrograms(NatsContract, NetworkContract, AsyncLockProviderContract, ProcessContract, AsyncPauseContract):
    kind = AsyncNatsLockProvider


@pytest.mark.slow(MANY_PROCESSES)
class TestProcesses(NatsContract, ProcessContract): ...


class TestStallingStore(NatsContract, StallingStoreContract):
    via_proxy = True


@pytest.mark.matrix(SAME_PROGRAMS)
class TestAsyncStallingStore(NatsContract, StallingStoreContract):
    kind = AsyncNatsLockProvider
    via_proxy = True
