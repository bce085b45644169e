"""The contract on MongoDB."""

from __future__ import annotations

import pytest

from shedlock_py.providers.mongodb import AsyncMongoLockProvider
from shedlock_py.testing.contract import (
    AsyncHistoryContract,
    AsyncLockProviderContract,
    AsyncPauseContract,
    EventLoopContract,
    ForkContract,
    HistoryContract,
    LockProviderContract,
    NetworkContract,
    PauseContract,
    ProcessContract,
    StallingStoreContract,
)
from shedlock_py.testing.contract.threads import ThreadsContract
from tests.contract.mongo import MongoContract

MONITORS = 2
"""Connections that PyMongo has besides its pool."""


class TestUrl(MongoContract, NetworkContract, LockProviderContract, ProcessContract, ForkContract, HistoryContract):
    most_connections = 20 + MONITORS


class TestAsyncUrl(
    MongoContract, NetworkContract, AsyncLockProviderContract, ProcessContract, EventLoopContract, AsyncHistoryContract
):
    programs_in = TestUrl
    kind = AsyncMongoLockProvider
    most_connections = 20 + MONITORS


class TestUsersClient(MongoContract, NetworkContract, ThreadsContract):
    """What depends on the client; the rest is of the matrix."""

    users_client = True
    most_connections = 1 + MONITORS


@pytest.mark.matrix
class TestAllWithUsersClient(MongoContract, LockProviderContract):
    users_client = True


class TestHistory(MongoContract, NetworkContract):
    history = 3
    most_connections = 20 + MONITORS


@pytest.mark.matrix
class TestAsyncUsersClient(MongoContract, NetworkContract, AsyncLockProviderContract):
    kind = AsyncMongoLockProvider
    users_client = True
    most_connections = 1 + MONITORS


# PyMongo warns of it; an application that forks after an import cannot follow its advice.
@pytest.mark.filterwarnings("ignore:MongoClient opened before fork:UserWarning")
class TestUsersClientForks(MongoContract, ForkContract):
    users_client = True


class TestStallingStore(MongoContract, StallingStoreContract):
    via_proxy = True


class TestAsyncStallingStore(MongoContract, StallingStoreContract):
    kind = AsyncMongoLockProvider
    via_proxy = True


class TestPause(MongoContract, PauseContract): ...


class TestAsyncPause(MongoContract, AsyncPauseContract):
    programs_in = TestPause
    kind = AsyncMongoLockProvider
