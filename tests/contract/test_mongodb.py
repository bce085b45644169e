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
from shedlock_py.testing.contract.network import LostRepliesContract
from shedlock_py.testing.contract.threads import ThreadsContract
from tests.contract.mongo import MongoContract
from tests.contract.parts import (
    MANY_PROCESSES,
    MANY_REQUESTS,
    SAME_PROGRAMS,
    SAME_STATEMENTS,
    AsyncClientBriefly,
    BeforeStore,
    ManyRequests,
    without,
)

MONITORS = 2
"""PyMongo's connections outside its pool."""


@without(BeforeStore, ManyRequests)
class TestUrl(MongoContract, NetworkContract, LockProviderContract, ForkContract, HistoryContract):
    most_connections = 20 + MONITORS


class TestAsyncUrl(MongoContract, AsyncClientBriefly, LostRepliesContract, EventLoopContract):
    kind = AsyncMongoLockProvider
    most_connections = 20 + MONITORS


@pytest.mark.matrix(SAME_PROGRAMS)
@without(TestAsyncUrl)
class TestAsyncPrograms(
    MongoContract, NetworkContract, AsyncLockProviderContract, ProcessContract, AsyncHistoryContract, AsyncPauseContract
):
    kind = AsyncMongoLockProvider
    most_connections = 20 + MONITORS


@pytest.mark.slow("SQLite and Redis pause by the same programs")
@without(BeforeStore)
class TestPause(MongoContract, PauseContract): ...


@pytest.mark.slow(MANY_REQUESTS)
class TestManyRequests(MongoContract, ManyRequests): ...


@pytest.mark.slow(MANY_PROCESSES)
class TestProcesses(MongoContract, ProcessContract): ...


@pytest.mark.slow("PostgreSQL and Redis try users' clients")
class TestUsersClient(MongoContract, LostRepliesContract, ThreadsContract):
    users_client = True
    most_connections = 1 + MONITORS


# PyMongo warns of it. Applications that fork after an import cannot follow its advice.
@pytest.mark.slow("PostgreSQL and Redis try users' clients")
@pytest.mark.filterwarnings("ignore:MongoClient opened before fork:UserWarning")
class TestUsersClientForks(MongoContract, ForkContract):
    users_client = True


@pytest.mark.matrix(SAME_STATEMENTS)
@without(TestUsersClient)
class TestAllWithUsersClient(MongoContract, NetworkContract, LockProviderContract):
    users_client = True
    most_connections = 1 + MONITORS


@pytest.mark.matrix(SAME_STATEMENTS)
class TestAsyncUsersClient(MongoContract, NetworkContract, AsyncLockProviderContract):
    kind = AsyncMongoLockProvider
    users_client = True
    most_connections = 1 + MONITORS


@pytest.mark.slow("the statements have one more part: the runs")
class TestUrlWithHistory(MongoContract, NetworkContract):
    history = 3
    most_connections = 20 + MONITORS


class TestStallingStore(MongoContract, StallingStoreContract):
    via_proxy = True


class TestAsyncStallingStore(MongoContract, StallingStoreContract):
    kind = AsyncMongoLockProvider
    via_proxy = True
