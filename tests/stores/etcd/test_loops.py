"""Connections of event loops that have ended."""

from __future__ import annotations

import asyncio
import gc

from shedlock_py import LockRequest
from shedlock_py.providers.etcd import AsyncEtcdLockProvider
from tests.support.etcd import EtcdServer


def test_a_loop_that_ends_closes_its_connections(etcd_server: EtcdServer, name: str) -> None:
    """asyncio warns of a transport that is not closed, and a warning is an error here."""
    provider = AsyncEtcdLockProvider(etcd_server.url())

    async def work() -> None:
        lease = await provider.acquire(LockRequest(name, "1m"))
        assert lease is not None
        assert await provider.release(lease)

    for _ in range(3):
        asyncio.run(work())
    gc.collect()
