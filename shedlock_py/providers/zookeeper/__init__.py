"""Locks in ZooKeeper, over kazoo."""

from shedlock_py.providers.zookeeper.zookeeper_provider import AsyncZooKeeperLockProvider, ZooKeeperLockProvider

__all__ = ["AsyncZooKeeperLockProvider", "ZooKeeperLockProvider"]
