"""At ``maxmemory``, Redis grants no new lock, but extends and releases held locks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from shedlock_py import LockRequest, ProviderUnreachable
from tests.stores.redis.stores import URL_KINDS, Store, through
from tests.support.locks import acquired, record_of

FIRE_TIME = datetime(2024, 7, 1, tzinfo=UTC)

pytestmark = through(*URL_KINDS, "once", "async once", programs=True)


@pytest.fixture
def full(private: Store, name: str) -> dict[str, Any]:
    """Leases on a server that has no memory left."""
    provider = private.provider()
    leases = {
        "released": acquired(provider, f"{name}-released"),
        "kept": acquired(provider, f"{name}-kept", "10m", lock_at_least_for="30s"),
        "undone": acquired(provider, f"{name}-undone", "10m", lock_at_least_for="10m", fire_time=FIRE_TIME),
        "forced": acquired(provider, f"{name}-forced"),
        "extended": acquired(provider, f"{name}-extended"),
    }
    with private.server.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
    return {"provider": provider, **leases}


def test_i5_nothing_is_granted(full: dict[str, Any], name: str) -> None:
    provider = full["provider"]
    assert provider.acquire(LockRequest(full["released"].name, "1m")) is None, "a skip needs no memory"
    for claim in (provider.acquire, provider.take_over):
        with pytest.raises(ProviderUnreachable, match="maxmemory"):
            claim(LockRequest(name, "1m"))
    assert provider.record(name) is None


def test_what_is_held_can_be_given_back(full: dict[str, Any], private: Store) -> None:
    provider = full["provider"]
    assert provider.release(full["released"]) is True
    assert not record_of(provider, full["released"].name).is_held
    assert provider.release(full["released"]) is False
    assert provider.release(full["kept"]) is True
    assert 20 < record_of(provider, full["kept"].name).remaining.total_seconds() <= 30
    undo = getattr(provider, "async_provider", provider).undo(full["undone"])
    assert (undo if isinstance(undo, bool) else provider.run(undo)) is True
    undone = record_of(provider, full["undone"].name)
    assert (undone.is_held, undone.last_fire_time) == (False, FIRE_TIME.replace(microsecond=0) - (datetime.resolution))
    assert provider.force_release(full["forced"].name) is True
    assert provider.extend(full["extended"], "1h") is full["extended"]
    assert record_of(provider, full["extended"].name).remaining.total_seconds() > 3000
    with private.server.client() as client:
        client.config_set("maxmemory", 0)
    for lock in ("released", "undone", "forced"):
        following = acquired(provider, full[lock].name, fire_time=FIRE_TIME)
        assert following.fencing_token > full[lock].fencing_token
