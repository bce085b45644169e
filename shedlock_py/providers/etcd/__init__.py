"""Locks in etcd, over the JSON gateway of its members."""

from shedlock_py.providers.etcd.etcd_provider import AsyncEtcdLockProvider, EtcdLockProvider

__all__ = ["AsyncEtcdLockProvider", "EtcdLockProvider"]
