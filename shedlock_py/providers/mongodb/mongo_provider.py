"""The two providers: one client blocks, one awaits."""

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

    Writes wait for a majority and reads go to the primary, whatever the client's defaults are.

    :param database_or_collection_or_url: a ``Database`` or ``Collection`` of the application's own ``MongoClient``,
        which is never closed; or a ``mongodb://`` URL, for which a small client is opened. The URL's own options win;
        without a database in it, the locks are in ``shedlock``.
    :param collection: the collection of the lock records.
    :param expire_after: :meth:`create_schema` lets MongoDB remove records that were not held for so long; with
        ``history``, whose runs go with their record, ten years at least.
    :param timeout: how long an operation may take in all, with a URL; 5 s by default, or the URL's ``timeout`` or
        ``timeoutMS``. PyMongo's limits for parts of it (``socketTimeoutMS``, …) count instead if the URL names them.
    :param fire_time_tolerance: how far a fire time may lie in the future of the server's clock; 5 minutes by default.
    :param history: how many runs of each lock name to keep, in its record, for :meth:`runs`; none by default.
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
        history: int | None = None,
    ) -> None:
        client = CollectionClient(database_or_collection_or_url, collection, timeout, fire_time_tolerance, history)
        super().__init__(
            MongoPrograms(client.full_name, expire_after, client.passwords, client.names, **client.limits), client
        )


class AsyncMongoLockProvider(AsyncProgramProvider):
    """:class:`MongoLockProvider` for asyncio: an ``AsyncDatabase``, an ``AsyncCollection``, or a URL.

    A provider made from a URL may be used from several event loops, one after the other or at once: each has its own
    small client. An ``AsyncMongoClient`` that the application supplies belongs to one loop, as in PyMongo.
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
