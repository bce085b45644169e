"""The contract on MongoDB."""

from __future__ import annotations

from shedlock_py.testing.contract import (
    AsyncLockProviderContract,
    LockProviderContract,
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
