"""The contract on MongoDB."""

from __future__ import annotations

import pytest

from shedlock_py.testing.contract import (
    AsyncLockProviderContract,
    EventLoopContract,
    ForkContract,
    LockProviderContract,
    NetworkContract,
    ProcessContract,
    StallingStoreContract,
)
from tests.contract.mongo import MongoContract


class TestUrl(MongoContract, LockProviderContract, ProcessContract):
    pass


class TestUsersClient(MongoContract, LockProviderContract):
    users_client = True


class TestStallingStore(MongoContract, StallingStoreContract):
    via_proxy = True


class TestAsyncUrl(MongoContract, AsyncLockProviderContract, ProcessContract):
    is_async = True


class TestAsyncUsersClient(MongoContract, AsyncLockProviderContract):
    is_async = True
    users_client = True


class TestAsyncStallingStore(MongoContract, StallingStoreContract):
    is_async = True
    via_proxy = True


MONITORS = 2
"""Connections that PyMongo has besides its pool."""


class TestNetwork(MongoContract, NetworkContract):
    most_connections = 20 + MONITORS


class TestAsyncNetwork(MongoContract, NetworkContract):
    is_async = True
    most_connections = 20 + MONITORS


class TestUsersClientNetwork(MongoContract, NetworkContract):
    users_client = True
    most_connections = 1 + MONITORS


class TestAsyncUsersClientNetwork(MongoContract, NetworkContract):
    is_async = True
    users_client = True
    most_connections = 1 + MONITORS


class TestForks(MongoContract, ForkContract):
    pass


# PyMongo warns of it; an application that forks after an import cannot follow its advice.
@pytest.mark.filterwarnings("ignore:MongoClient opened before fork:UserWarning")
class TestUsersClientForks(MongoContract, ForkContract):
    users_client = True


class TestEventLoops(MongoContract, EventLoopContract):
    is_async = True
