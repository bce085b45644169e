"""The sync and the async provider for MongoDB."""

from __future__ import annotations

from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.collection import Collection
from pymongo.database import Database

from shedlock_py.model.durations import Duration
from shedlock_py.providers.kit import AsyncProgramProvider, ProgramProvider
from shedlock_py.providers.mongodb.mongo_clients import COLLECTION, AsyncCollectionClient, CollectionClient
from shedlock_py.providers.mongodb.mongo_programs import MongoPrograms


class MongoLockProvider(ProgramProvider):
    """Locks in a collection of MongoDB.

    Writes wait for a majority, and reads go to the primary, whatever the client's defaults are.

    :param database_or_collection_or_url: a ``Database`` or ``Collection`` of the application's ``MongoClient``, which
        is never closed. Or a ``mongodb://`` URL, for which a small client is opened; the options in the URL have
        priority. Without a database in the URL, the locks are in ``shedlock``.
    :param collection: the collection of the lock records.
    :param expire_after: :meth:`create_schema` lets MongoDB remove records that were not held for this time. With
        ``history`` it is at least ten years, because runs are deleted with their record.
    :param timeout: the time limit of a whole operation with a URL (default: 5 s, or ``timeout`` or ``timeoutMS`` in the
        URL). If the URL sets PyMongo's limits for parts of an operation (``socketTimeoutMS``, …), those count instead.
    :param fire_time_tolerance: how far a fire time may be ahead of the server's clock (default: 5 minutes).
    :param history: the number of runs to keep for each lock name in its record, for :meth:`runs` (default: 0).
    :raises ConfigurationError: a URL or an object cannot work.
    """

    def __init__(
        self,
        database_or_collection_or_url: Database[Any] | Collection[Any] | str,
        *,
        collection: str = COLLECTION,
        expire_after: Duration = "30d",
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
        history: int | None = None,
    ) -> None:
        client = CollectionClient(database_or_collection_or_url, collection, timeout, fire_time_tolerance, history)
        super().__init__(
            MongoPrograms(client.full_name, expire_after, client.passwords, client.names, **client.limits), client
        )


class AsyncMongoLockProvider(AsyncProgramProvider):
    """:class:`MongoLockProvider` for asyncio: an ``AsyncDatabase``, an ``AsyncCollection``, or a URL.

    A provider from a URL can be used in several event loops, in turn or at once: each has its own small client. PyMongo
    allows your ``AsyncMongoClient`` only in one event loop.
    """

    def __init__(
        self,
        database_or_collection_or_url: AsyncDatabase[Any] | AsyncCollection[Any] | str,
        *,
        collection: str = COLLECTION,
        expire_after: Duration = "30d",
        timeout: Duration | None = None,
        fire_time_tolerance: Duration | None = None,
        history: int | None = None,
    ) -> None:
        client = AsyncCollectionClient(database_or_collection_or_url, collection, timeout, fire_time_tolerance, history)
        super().__init__(
            MongoPrograms(client.full_name, expire_after, client.passwords, client.names, **client.limits), client
        )
