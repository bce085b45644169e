"""create_schema(): the index that removes old records. Idempotent, from many processes at once."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import ConfigurationError, LockProvider, LockRequest
from shedlock_py.providers.mongodb import AsyncMongoLockProvider, MongoLockProvider
from tests.stores.mongodb.stores import SLOW_SERVER, Store
from tests.support.locks import acquired
from tests.support.workers import workers

DAY = 86_400


def provider_of(store: Store, expire_after: str | timedelta | float = "30d") -> LockProvider:
    provider = MongoLockProvider(store.url(**SLOW_SERVER), collection=store.collection, expire_after=expire_after)
    store.stack.callback(provider.close)
    return provider


def expiry(store: Store) -> Any:
    indexes = [index for index in store.documents.list_indexes() if dict(index["key"]) != {"_id": 1}]
    assert [dict(index["key"]) for index in indexes] == [{"lockUntil": 1}]
    return indexes[0]["expireAfterSeconds"]


def test_the_second_create_schema_changes_nothing(store: Store, name: str) -> None:
    provider = provider_of(store)
    provider.create_schema()
    lease = acquired(provider, name)
    provider.create_schema()
    assert expiry(store) == 30 * DAY
    assert provider.acquire(LockRequest(name, "1m")) is None, "the record must have survived"
    assert provider.release(lease)


def test_no_operation_needs_create_schema(store: Store, name: str) -> None:
    provider = provider_of(store)
    assert provider.records() == []
    assert provider.prune(0) == 0
    assert provider.force_release(name) is False
    assert provider.release(acquired(provider, name))


@pytest.mark.parametrize("existing", [{}, {"expireAfterSeconds": 5}, {"name": "mine", "expireAfterSeconds": 5}])
def test_an_index_that_was_there_before_gets_the_right_expiry(store: Store, existing: dict[str, Any]) -> None:
    store.documents.create_index("lockUntil", **existing)
    for expire_after, seconds in (("30d", 30 * DAY), ("40d", 40 * DAY), (1.5, 2)):
        provider_of(store, expire_after).create_schema()
        assert expiry(store) == seconds


def test_records_with_runs_are_kept_for_ten_years(store: Store) -> None:
    """The runs go with their record, and a job may run once a month."""
    provider_of(store).create_schema()
    store.provider(history=3).create_schema()
    assert expiry(store) == 3652 * DAY


@pytest.mark.parametrize("expire_after", [0, "999ms", -1, "10", None, "11 years"])
def test_a_time_that_no_index_can_have_is_refused(expire_after: Any) -> None:
    with pytest.raises(ConfigurationError, match="expire_after"):
        MongoLockProvider("mongodb://h", expire_after=expire_after)
    with pytest.raises(ConfigurationError, match="expire_after"):
        AsyncMongoLockProvider("mongodb://h", expire_after=expire_after)


def test_what_the_index_removes_is_never_held(store: Store, name: str) -> None:
    """MongoDB deletes a document if the field's date is that many seconds in the past, and nothing else."""
    provider = provider_of(store, 1)
    provider.create_schema()
    acquired(provider, name)
    document = store.documents.find_one({"_id": name})
    assert document
    assert document["lockUntil"] > datetime.now(UTC) + timedelta(seconds=30)


@pytest.mark.slow("starts ten processes")
def test_ten_processes_create_it_at_once(store: Store) -> None:
    with workers() as call_all:
        for kind in (MongoLockProvider, AsyncMongoLockProvider):
            for i in range(2):
                collection = f"{store.collection}_{kind.__name__}_{i}"
                assert set(call_all(create_in_process, kind, store.url(**SLOW_SERVER), collection)) == {None}
                found = store.documents.database[collection]
                assert found.index_information()["lockUntil_1"]["expireAfterSeconds"] == 30 * DAY
                found.drop()


def create_in_process(kind: Any, url: str, collection: str) -> None:
    async def create() -> None:
        provider = kind(url, collection=collection)
        for step in (provider.create_schema, provider.close):
            result = step()
            if result is not None:
                await result

    asyncio.run(create())
