"""Keep-alive of async tasks on a sync provider: heartbeats are sent in threads."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from shedlock_py import LeaseLost, LockExtended, assert_locked, extend_lock, hold_async
from shedlock_py.testing import RecordingListener
from tests.support.doubles import FaultyProvider
from tests.support.polling import until

LEASE = 2.0
"""Seconds. A heartbeat may be more than a second late, as on a busy machine."""


async def outlasts(lease_lengths: float) -> None:
    """Let the task run for so many leases."""
    until = time.monotonic() + lease_lengths * LEASE
    while time.monotonic() < until:
        assert_locked("job")
        await asyncio.sleep(0.005)


@pytest.mark.not_quick("waits for real seconds")
async def test_a_sync_provider_keeps_it_alive_as_well(recorded: RecordingListener) -> None:
    store = FaultyProvider()
    async with hold_async("job", lock_at_most_for=LEASE, keep_alive=True, provider=store):
        await outlasts(1.5)
    assert store.calls["extend"] >= 2
    assert not recorded.of(LeaseLost)


@pytest.mark.not_quick("waits for real seconds")
async def test_a_blocking_extension_on_the_event_loop(recorded: RecordingListener) -> None:
    """A heartbeat may be on its way to a worker thread; the blocked loop cannot notice its end."""
    store = FaultyProvider()
    async with hold_async("job", lock_at_most_for=LEASE, keep_alive=True, provider=store) as lease:
        assert lease is not None
        await until(lambda: recorded.of(LockExtended))
        extend_lock("10m")
        before = store.calls["extend"]
        await outlasts(1)
        # a shorter extension was on its way; the next heartbeat restores the ten minutes
        assert store.calls["extend"] <= before + 2
        for _ in range(100):
            extend_lock("10m")
            assert lease.trusted_for() > timedelta(minutes=9)
            extend_lock(LEASE / 3)
    assert not recorded.of(LeaseLost)
