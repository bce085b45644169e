"""What a server says of itself: for ``shedlock doctor``."""

from __future__ import annotations

from typing import Any

from shedlock_py.provider import Check
from tests.stores.mongodb.stores import Store


def test_a_replica_set(store: Store) -> None:
    """SecantusDB says that it is one. A server alone and a sharded cluster were not tried."""
    provider: Any = store.provider()
    assert provider.checks() == [
        Check("replication", "ok", "replica set secantus, members with data: 1; a write waits for a majority"),
    ]
