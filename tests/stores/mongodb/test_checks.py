"""Checks of a server, for ``shedlock doctor``."""

from __future__ import annotations

from typing import Any

import pytest

from shedlock_py.provider import Check
from shedlock_py.providers.mongodb import MongoLockProvider
from shedlock_py.runtime.program import drive
from tests.stores.mongodb.stores import Store

REPLICA_SET = "replica set secantus, members with data: 1; a write waits for a majority"


def test_a_replica_set_says_how_many_members_it_has(store: Store) -> None:
    """SecantusDB reports one member."""
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
def test_doctor_says_what_kind_of_server_it_is(hello: dict[str, Any], status: str, message: str) -> None:
    """By MongoDB's documentation of hello: we have no such servers."""
    (found,) = drive(MongoLockProvider("mongodb://h").programs.checks(), lambda _: hello)
    assert found.status == status
    assert message in found.message
