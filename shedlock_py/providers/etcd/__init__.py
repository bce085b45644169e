"""Locks in etcd, over the JSON gateway that each member has."""

from shedlock_py.providers.etcd.etcd_provider import AsyncEtcdLockProvider, EtcdLockProvider

__all__ = ["AsyncEtcdLockProvider", "EtcdLockProvider"]
