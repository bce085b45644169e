"""The two providers: one client blocks, one awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import Context
from typing import Any

import pymongo
from pymongo import ReturnDocument
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.collation import Collation
from pymongo.collection import Collection
from pymongo.database import Database

from shedlock_py._clock import monotonic
from shedlock_py.durations import Duration
from shedlock_py.providers.kit import AsyncProgramProvider, ProgramProvider, parse_timeout, parse_tolerance
from shedlock_py.providers.mongodb.clients import (
    COLLECTION,
    ManagedAsyncClients,
    ManagedClients,
    Record,
    UserCollection,
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
    UpdateOne,
)
from shedlock_py.providers.mongodb.programs import MongoPrograms


class MongoLockProvider(ProgramProvider):
    """Locks in a collection of MongoDB.

    Writes wait for a majority and reads ask the primary, whatever the client's defaults are.

    :param database_or_collection_or_url: a ``Database`` or ``Collection`` of the application's own ``MongoClient``,
        which is never closed; or a ``mongodb://`` URL, for which a small client is opened. What the URL says wins;
        without a database in it, the locks are in ``shedlock``.
    :param collection: the collection of the lock records.
    :param expire_after: :meth:`create_schema` lets MongoDB remove records that were not held for so long.
    :param timeout: how long an operation may take in all, with a URL; 5 s by default, or the URL's ``timeout`` or
        ``timeoutMS``. PyMongo's limits for parts of it (``socketTimeoutMS``, …) count instead if the URL names them.
    :param fire_time_tolerance: how far a fire time may lie in the future of the server's clock; 5 minutes by default.
    :raises ConfigurationError: a URL or an object that cannot work.
    """

    def __init__(
        self,
        database_or_collection_or_url: Database[Any] | Collection[Any] | str,
        *,
        collection: str = COLLECTION,
        expire_after: Duration = "30d",
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        self._store = store = find_store(database_or_collection_or_url, collection, timeout)
        super().__init__(
            _programs(store, expire_after, timeout, fire_time_tolerance), _Client(store.collection, store.has_limits)
        )

    def close(self) -> None:
        """Close the connections of a client that was opened from a URL; a user's client stays as it is."""
        if isinstance(self._store, ManagedClients):
            self._store.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store.full_name}{self._store.shown}>"


class AsyncMongoLockProvider(AsyncProgramProvider):
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
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
    ) -> None:
        self._store = store = find_async_store(database_or_collection_or_url, collection, timeout)
        super().__init__(
            _programs(store, expire_after, timeout, fire_time_tolerance),
            _AsyncClient(store.collection, store.has_limits),
        )

    async def close(self) -> None:
        """Close the connections that this event loop opened from a URL; a user's client stays as it is."""
        if isinstance(self._store, ManagedAsyncClients):
            await self._store.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store.full_name}{self._store.shown}>"


def _programs(
    store: UserCollection[Any] | ManagedClients | ManagedAsyncClients,
    expire_after: Duration,
    timeout: Duration | None,
    tolerance: Duration | None,
) -> MongoPrograms:
    in_url = {} if isinstance(store, UserCollection) else store.options
    seconds = parse_timeout(timeout, in_url.get("timeout"), is_managed=not isinstance(store, UserCollection))
    return MongoPrograms(
        store.full_name,
        expire_after,
        store.redact,
        clock=monotonic,
        timeout=seconds,
        fire_time_tolerance=parse_tolerance(tolerance, in_url.get("fire_time_tolerance")),
    )


class _Client:
    """Carries a command out, and blocks."""

    def __init__(self, collection: Callable[[], Collection[Record]], has_limits: bool) -> None:
        self._collection = collection
        self._has_limits = has_limits

    def execute(self, command: Command, timeout: float | None) -> Answer:
        # In a context of its own: not in the session or the time limit that the caller's context has for PyMongo.
        return Context().run(self._execute_within, command, None if self._has_limits else timeout)

    def _execute_within(self, command: Command, timeout: float | None) -> Answer:
        with nullcontext() if timeout is None else pymongo.timeout(timeout):
            return self._execute(command)

    def _execute(self, command: Command) -> Answer:
        collection = self._collection()
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


class _AsyncClient:
    """Carries a command out on an event loop."""

    def __init__(self, collection: Callable[[], AsyncCollection[Record]], has_limits: bool) -> None:
        self._collection = collection
        self._has_limits = has_limits

    async def execute(self, command: Command, timeout: float | None) -> Answer:  # noqa: ASYNC109 (of the kit's client)
        seconds = None if self._has_limits else timeout
        return await asyncio.create_task(self._execute_within(command, seconds), context=Context())

    async def _execute_within(self, command: Command, seconds: float | None) -> Answer:
        with nullcontext() if seconds is None else pymongo.timeout(seconds):
            return await self._execute(command)

    async def _execute(self, command: Command) -> Answer:
        collection = self._collection()
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


# What both share

BYTE_BY_BYTE = Collation("simple")
"""Given with each command: a collection may have been made with a collation that folds case."""


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
