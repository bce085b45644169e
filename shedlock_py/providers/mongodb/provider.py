"""The two shells around the algorithm: one asks the server directly, one awaits it."""

from __future__ import annotations

import asyncio
import time
from contextvars import Context
from typing import Any

from pymongo import ReturnDocument
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.collation import Collation
from pymongo.collection import Collection
from pymongo.database import Database

from shedlock_py._aio import shielded
from shedlock_py._clock import monotonic
from shedlock_py._program import run, run_async
from shedlock_py.durations import Duration
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.providers.mongodb.algorithm import MongoAlgorithm
from shedlock_py.providers.mongodb.clients import (
    COLLECTION,
    OwnAsyncClients,
    OwnClients,
    Record,
    find_async_store,
    find_store,
)
from shedlock_py.providers.mongodb.commands import (
    Aggregate,
    Answer,
    ChangeIndex,
    Command,
    CreateIndex,
    DeleteMany,
    FindOneAndUpdate,
    ListIndexes,
    Pause,
    UpdateOne,
)
from shedlock_py.rules import Lease, LockRecord, LockRequest


class MongoLockProvider(LockProvider):
    """Locks in a collection of MongoDB.

    Writes wait for a majority and reads ask the primary, whatever the client's defaults are.

    :param database_or_collection_or_url: a ``Database`` or ``Collection`` of the application's own ``MongoClient``,
        which we borrow and never close; or a ``mongodb://`` URL, for which we open a small client with a time limit of
        2 s on everything. What the URL says wins; without a database in it, the locks are in ``shedlock``.
    :param collection: the collection of the lock records.
    :param expire_after: :meth:`create_schema` lets MongoDB remove records that were not held for so long.
    :raises ConfigurationError: a URL or an object that cannot work.
    """

    def __init__(
        self,
        database_or_collection_or_url: Database[Any] | Collection[Any] | str,
        *,
        collection: str = COLLECTION,
        expire_after: Duration = "30d",
    ) -> None:
        self._store = store = find_store(database_or_collection_or_url, collection)
        self._algorithm = MongoAlgorithm(store.full_name, expire_after, monotonic, store.redact)

    def acquire(self, request: LockRequest) -> Lease | None:
        return run(self._algorithm.acquire(request), self._execute)

    def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        return run(self._algorithm.extend(lease, lock_at_most_for), self._execute)

    def release(self, lease: Lease) -> bool:
        return run(self._algorithm.release(lease), self._execute)

    def record(self, name: str) -> LockRecord | None:
        return run(self._algorithm.record(name), self._execute)

    def records(self, prefix: str = "") -> list[LockRecord]:
        return run(self._algorithm.records(prefix), self._execute)

    def force_release(self, name: str) -> bool:
        return run(self._algorithm.force_release(name), self._execute)

    def take_over(self, request: LockRequest) -> Lease:
        return run(self._algorithm.take_over(request), self._execute)

    def prune(self, unused_for: Duration) -> int:
        return run(self._algorithm.prune(unused_for), self._execute)

    def create_schema(self) -> None:
        return run(self._algorithm.create_schema(), self._execute)

    def close(self) -> None:
        """Close the connections that we opened ourselves; a borrowed client stays as it is."""
        if isinstance(self._store, OwnClients):
            self._store.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store.full_name}{self._store.shown}>"

    def _execute(self, command: Command) -> Answer:
        # In a context of its own: never in the session or the time limit that the caller's has for PyMongo.
        return Context().run(self._ask, command)

    def _ask(self, command: Command) -> Answer:
        if isinstance(command, Pause):
            time.sleep(command.seconds)
            return Answer()
        collection: Collection[Record] = self._store.collection()
        match command:
            case FindOneAndUpdate():
                document = collection.find_one_and_update(**_modification(command))
                return Answer(documents=[] if document is None else [document])
            case UpdateOne():
                updated = collection.update_one(command.filter, command.update, collation=BYTE_BY_BYTE)
                return Answer(count=updated.matched_count)
            case DeleteMany():
                deleted = collection.delete_many(command.filter)
                return Answer(count=deleted.deleted_count)
            case Aggregate():
                found = collection.aggregate(command.pipeline, collation=BYTE_BY_BYTE)
                return Answer(documents=found.to_list())
            case ListIndexes():
                indexes = collection.list_indexes()
                return Answer(documents=indexes.to_list())
            case CreateIndex():
                collection.create_index(command.field, expireAfterSeconds=command.expire_after_seconds)
                return Answer()
            case ChangeIndex():
                collection.database.command(_index_change(collection.name, command))
                return Answer()


class AsyncMongoLockProvider(AsyncLockProvider):
    """:class:`MongoLockProvider` for asyncio: an ``AsyncDatabase`` or ``AsyncCollection`` of yours, or a URL.

    A provider made from a URL may be used from several event loops, one after the other or at once: each has its own
    small client. An ``AsyncMongoClient`` of yours belongs to one loop, as PyMongo says.
    """

    def __init__(
        self,
        database_or_collection_or_url: AsyncDatabase[Any] | AsyncCollection[Any] | str,
        *,
        collection: str = COLLECTION,
        expire_after: Duration = "30d",
    ) -> None:
        self._store = store = find_async_store(database_or_collection_or_url, collection)
        self._algorithm = MongoAlgorithm(store.full_name, expire_after, monotonic, store.redact)

    async def acquire(self, request: LockRequest) -> Lease | None:
        return await shielded(run_async(self._algorithm.acquire(request), self._execute), when_abandoned=self.release)

    async def extend(self, lease: Lease, lock_at_most_for: Duration) -> Lease | None:
        # To its end even if cancelled: a release that overtook it would be undone by it.
        return await shielded(run_async(self._algorithm.extend(lease, lock_at_most_for), self._execute))

    async def release(self, lease: Lease) -> bool:
        return await shielded(run_async(self._algorithm.release(lease), self._execute))

    # The others, too: a call that is cancelled costs PyMongo its connection.

    async def record(self, name: str) -> LockRecord | None:
        return await shielded(run_async(self._algorithm.record(name), self._execute))

    async def records(self, prefix: str = "") -> list[LockRecord]:
        return await shielded(run_async(self._algorithm.records(prefix), self._execute))

    async def force_release(self, name: str) -> bool:
        return await shielded(run_async(self._algorithm.force_release(name), self._execute))

    async def take_over(self, request: LockRequest) -> Lease:
        return await shielded(run_async(self._algorithm.take_over(request), self._execute), when_abandoned=self.release)

    async def prune(self, unused_for: Duration) -> int:
        return await shielded(run_async(self._algorithm.prune(unused_for), self._execute))

    async def create_schema(self) -> None:
        return await shielded(run_async(self._algorithm.create_schema(), self._execute))

    async def close(self) -> None:
        """Close the connections that this event loop opened; a borrowed client stays as it is."""
        if isinstance(self._store, OwnAsyncClients):
            await self._store.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store.full_name}{self._store.shown}>"

    async def _execute(self, command: Command) -> Answer:
        return await asyncio.create_task(self._ask(command), context=Context())

    async def _ask(self, command: Command) -> Answer:
        if isinstance(command, Pause):
            await asyncio.sleep(command.seconds)
            return Answer()
        collection: AsyncCollection[Record] = self._store.collection()
        match command:
            case FindOneAndUpdate():
                document = await collection.find_one_and_update(**_modification(command))
                return Answer(documents=[] if document is None else [document])
            case UpdateOne():
                updated = await collection.update_one(command.filter, command.update, collation=BYTE_BY_BYTE)
                return Answer(count=updated.matched_count)
            case DeleteMany():
                deleted = await collection.delete_many(command.filter)
                return Answer(count=deleted.deleted_count)
            case Aggregate():
                found = await collection.aggregate(command.pipeline, collation=BYTE_BY_BYTE)
                return Answer(documents=await found.to_list())
            case ListIndexes():
                indexes = await collection.list_indexes()
                return Answer(documents=await indexes.to_list())
            case CreateIndex():
                await collection.create_index(command.field, expireAfterSeconds=command.expire_after_seconds)
                return Answer()
            case ChangeIndex():
                await collection.database.command(_index_change(collection.name, command))
                return Answer()


# What both shells share

BYTE_BY_BYTE = Collation("simple")
"""Said each time: a collection may have been made with a collation that folds case."""


def _modification(command: FindOneAndUpdate) -> dict[str, Any]:
    return {
        "filter": command.filter,
        "update": command.update,
        "upsert": command.upsert,
        "projection": command.projection,
        "return_document": ReturnDocument.AFTER,
        "collation": BYTE_BY_BYTE,
    }


def _index_change(collection: str, command: ChangeIndex) -> dict[str, Any]:
    index = {"keyPattern": {command.field: 1}, "expireAfterSeconds": command.expire_after_seconds}
    return {"collMod": collection, "index": index}
