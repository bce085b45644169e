"""What a server says of itself: for ``shedlock doctor``."""

from __future__ import annotations

from typing import Any

import pytest

from shedlock_py._program import run
from shedlock_py.provider import Check
from tests.stores.mongodb.stores import Store

REPLICA_SET = "replica set secantus, members with data: 1; a write waits for a majority"


def test_a_replica_set(store: Store) -> None:
    """SecantusDB says that it is one."""
    provider: Any = store.provider()
    assert provider.checks() == [Check("replication", "ok", REPLICA_SET)]


@pytest.mark.parametrize(
    ("hello", "status", "message"),
    [
        ({"isWritablePrimary": True}, "ok", "a single server, without one that could take over"),
        ({"isWritablePrimary": True, "msg": "isdbgrid"}, "ok", "a sharded cluster: a write waits for a majority"),
        ({"isWritablePrimary": True, "setName": "secantus", "hosts": ["db-1:27017"]}, "ok", REPLICA_SET),
        ({"isWritablePrimary": False, "setName": "secantus", "hosts": ["db-1:27017"]}, "failed", "not the primary"),
    ],
)
def test_what_other_servers_reply(store: Store, hello: dict[str, Any], status: str, message: str) -> None:
    """By MongoDB's documentation of hello: we have no such servers."""
    provider: Any = store.provider()
    programs = getattr(provider, "async_provider", provider).programs
    (found,) = run(programs.checks(), lambda _: hello)
    assert found.status == status
    assert message in found.message
