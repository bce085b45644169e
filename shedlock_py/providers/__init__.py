"""The provider classes of all stores. A class is imported at first use, and then needs the extra of its store."""

from importlib import import_module
from typing import TYPE_CHECKING

from shedlock_py.model.stores import STORES
from shedlock_py.runtime.versions import install_line, missing_package

# Type checkers see plain imports. With __getattr__ they would accept every misspelt name.
if TYPE_CHECKING:
    from shedlock_py.providers.azblob import AsyncAzureBlobLockProvider, AzureBlobLockProvider
    from shedlock_py.providers.dynamodb import AsyncDynamoDBLockProvider, DynamoDBLockProvider
    from shedlock_py.providers.etcd import AsyncEtcdLockProvider, EtcdLockProvider
    from shedlock_py.providers.kubernetes import AsyncKubernetesLockProvider, KubernetesLockProvider
    from shedlock_py.providers.memory import AsyncInMemoryLockProvider, InMemoryLockProvider
    from shedlock_py.providers.mongodb import AsyncMongoLockProvider, MongoLockProvider
    from shedlock_py.providers.nats import AsyncNatsLockProvider, NatsLockProvider
    from shedlock_py.providers.redis import (
        AsyncRedisLockProvider,
        AsyncRedisQuorumLockProvider,
        RedisLockProvider,
        RedisQuorumLockProvider,
    )
    from shedlock_py.providers.s3 import AsyncS3LockProvider, S3LockProvider
    from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
    from shedlock_py.providers.zookeeper import AsyncZooKeeperLockProvider, ZooKeeperLockProvider
else:
    _LAZY = {f"{prefix}{store.class_name}": store.module for store in STORES.values() for prefix in ("", "Async")}
    """The module of each class. The extra has the same name."""

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        store = _LAZY[name]
        try:
            module = import_module(f"{__name__}.{store}")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(missing_package(name, error, install_line(store)), name=error.name) from error
        globals()[name] = found = getattr(module, name)
        return found

    def __dir__() -> list[str]:
        return sorted(__all__)


__all__ = [
    "AsyncAzureBlobLockProvider",
    "AsyncDynamoDBLockProvider",
    "AsyncEtcdLockProvider",
    "AsyncInMemoryLockProvider",
    "AsyncKubernetesLockProvider",
    "AsyncMongoLockProvider",
    "AsyncNatsLockProvider",
    "AsyncRedisLockProvider",
    "AsyncRedisQuorumLockProvider",
    "AsyncS3LockProvider",
    "AsyncSqlAlchemyLockProvider",
    "AsyncZooKeeperLockProvider",
    "AzureBlobLockProvider",
    "DynamoDBLockProvider",
    "EtcdLockProvider",
    "InMemoryLockProvider",
    "KubernetesLockProvider",
    "MongoLockProvider",
    "NatsLockProvider",
    "RedisLockProvider",
    "RedisQuorumLockProvider",
    "S3LockProvider",
    "SqlAlchemyLockProvider",
    "ZooKeeperLockProvider",
]
