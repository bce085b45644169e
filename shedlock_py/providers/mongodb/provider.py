"""The two providers: one client blocks, one awaits."""

from __future__ import annotations

import asyncio
from contextvars import Context
from operator import attrgetter
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.command_cursor import AsyncCommandCursor
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.collection import Collection
from pymongo.command_cursor import CommandCursor
from pymongo.database import Database

from shedlock_py.durations import Duration
from shedlock_py.providers.kit import AsyncProgramProvider, ProgramProvider, parse_timeout, parse_tolerance
from shedlock_py.providers.mongodb.clients import COLLECTION, ManagedStore, UserStore, find_store
from shedlock_py.providers.mongodb.errors import time_limit
from shedlock_py.providers.mongodb.programs import Command, MongoPrograms

Store = UserStore | ManagedStore


class MongoLockProvider(ProgramProvider):
    """Locks in a collection of MongoDB.

    Writes wait for a majority and reads go to the primary, whatever the client's defaults are.

    :param database_or_collection_or_url: a ``Database`` or ``Collection`` of the application's own ``MongoClient``,
        which is never closed; or a ``mongodb://`` URL, for which a small client is opened. The URL's own options win;
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
        self._store = store = find_store(database_or_collection_or_url, collection, timeout, is_async=False)
        super().__init__(_programs(store, expire_after, timeout, fire_time_tolerance), _Client(store))

    def close(self) -> None:
        """Close the connections of a client that was opened from a URL; a user's client stays as it is."""
        client = self._store.pop_client()
        if client is not None:
            client.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store.shown}>"


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
    ) -> None:
        self._store = store = find_store(database_or_collection_or_url, collection, timeout, is_async=True)
        super().__init__(_programs(store, expire_after, timeout, fire_time_tolerance), _AsyncClient(store))

    async def close(self) -> None:
        """Close the connections that this event loop opened from a URL; a user's client stays as it is."""
        client = self._store.pop_client()
        if client is not None:
            await client.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store.shown}>"


def _programs(
    store: Store, expire_after: Duration, timeout: Duration | None, tolerance: Duration | None
) -> MongoPrograms:
    url = store.url
    return MongoPrograms(
        store.full_name,
        expire_after,
        url.redact if url else str,
        timeout=url.timeout if url else parse_timeout(timeout, None, is_managed=False),
        fire_time_tolerance=parse_tolerance(tolerance, url.options.get("fire_time_tolerance") if url else None),
    )


class _Client:
    """Carries a command out, and blocks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._has_limits = store.url is None or store.url.has_limits

    def execute(self, command: Command, timeout: float | None) -> Any:
        # In a context of its own: not in the session or the time limit that the caller's context has for PyMongo.
        return Context().run(self._execute, command, None if self._has_limits else timeout)

    def _execute(self, command: Command, seconds: float | None) -> Any:
        with time_limit(seconds):
            method = attrgetter(command.method)(self._store.collection())
            result = method(**command.arguments)
            return result.to_list() if isinstance(result, CommandCursor) else result


class _AsyncClient:
    """Carries a command out on an event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._has_limits = store.url is None or store.url.has_limits

    async def execute(self, command: Command, timeout: float | None) -> Any:  # noqa: ASYNC109 (of the kit's client)
        work = self._execute(command, None if self._has_limits else timeout)
        return await asyncio.create_task(work, context=Context())

    async def _execute(self, command: Command, seconds: float | None) -> Any:
        with time_limit(seconds):
            method = attrgetter(command.method)(self._store.collection())
            result = await method(**command.arguments)
            return await result.to_list() if isinstance(result, AsyncCommandCursor) else result
