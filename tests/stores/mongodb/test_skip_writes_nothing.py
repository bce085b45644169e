"""Skips are the most frequent operation: a skip does not change the record, so members replicate nothing."""

from datetime import UTC, datetime
from typing import Any

import pytest

from shedlock_py import LockRequest
from tests.stores.mongodb.stores import DATABASE, SLOW_SERVER, Store
from tests.support.locks import acquired

SKIPS = 5
FIRE_TIME = datetime(2024, 1, 1, tzinfo=UTC)
REASONS = ["held", "held, with a fire time", "already ran", "held by ShedLock for Java"]


def writes(store: Store) -> int:
    if "oplog.rs" not in store.admin.local.list_collection_names():
        pytest.skip("a server without an oplog: start it as a replica set")
    return store.admin.local["oplog.rs"].count_documents({"ns": f"{DATABASE}.{store.collection}"})


@pytest.mark.parametrize(
    ("retries", "history"),
    [(False, 3), *(pytest.param(each, 0, marks=pytest.mark.slow("without history")) for each in (False, True))],
)
def test_a_skip_writes_nothing(store: Store, retries: bool, history: int) -> None:
    provider = store.provider(**SLOW_SERVER, retryWrites=str(retries).lower(), history=history)
    for name in REASONS:
        fire_time = FIRE_TIME if name in REASONS[1:3] else None
        if name == REASONS[3]:
            now = datetime.now(UTC)
            store.documents.insert_one(
                {"_id": name, "lockUntil": now.replace(year=9000), "lockedAt": now, "lockedBy": "java", "note": None}
            )
        else:
            lease = acquired(provider, name, fire_time=fire_time)
            if name == "already ran":
                assert provider.release(lease)
        before, written = document(store, name), writes(store)
        for _ in range(SKIPS):
            assert provider.acquire(LockRequest(name, "1h", fire_time=fire_time, holder="somebody else")) is None
        assert document(store, name) == before
        assert writes(store) == written

        provider.take_over(LockRequest(name, "1m"))
        assert writes(store) > written, "this test would not have seen a write"
        assert document(store, name) != before


def document(store: Store, name: str) -> list[tuple[str, Any]]:
    """The document's fields, in order."""
    found = store.documents.find_one({"_id": name})
    assert found
    return list(found.items())


def test_a_release_that_comes_late_writes_nothing(store: Store, name: str) -> None:
    provider = store.provider(**SLOW_SERVER)
    lease = acquired(provider, name)
    assert provider.force_release(name)
    before, written = document(store, name), writes(store)
    assert provider.extend(lease, "1h") is None
    assert provider.release(lease) is False
    assert provider.force_release(name) is False
    assert (document(store, name), writes(store)) == (before, written)
