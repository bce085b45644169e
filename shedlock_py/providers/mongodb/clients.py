"""Where the records are: in a collection of the user's client, or of clients that are opened from a URL."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from datetime import UTC
from typing import Any, Generic, TypeVar
from urllib.parse import unquote_plus

from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import AsyncMongoClient, MongoClient, ReadPreference, WriteConcern
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import InvalidName, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import split_options as split_uri_options

from shedlock_py.durations import Duration
from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.kit import parse_timeout, split_options

Record = dict[str, Any]
Found = TypeVar("Found")

COLLECTION = "shedlock"
DATABASE = "shedlock"
"""Where a URL names none."""
MAJORITY_MS = 5000
"""How long the server waits for a majority on behalf of a user's client that has no ``timeoutMS``."""
POOL_SIZE = 20

# The user's own settings are for the user's data: what a lock needs is always the same.
_SETTINGS: dict[str, Any] = {
    "write_concern": WriteConcern("majority", wtimeout=MAJORITY_MS),
    "read_concern": ReadConcern("majority"),
    "read_preference": ReadPreference.PRIMARY,
    "codec_options": CodecOptions(
        document_class=dict,
        tz_aware=True,
        tzinfo=UTC,
        unicode_decode_error_handler="strict",
        datetime_conversion=DatetimeConversion.DATETIME_CLAMP,
    ),
}


class UserCollection(Generic[Found]):
    """A collection of the user's client, with our settings."""

    shown = ""
    has_limits = True

    def __init__(self, collection: Any) -> None:
        self._collection: Found = collection
        self.full_name = str(collection.full_name)

    def collection(self) -> Found:
        return self._collection

    def redact(self, message: str) -> str:
        return message


def find_store(
    given: object, name: str, timeout: Duration | None
) -> UserCollection[Collection[Record]] | ManagedClients:
    """Where ``given`` says: a database, a collection or a URL.

    :raises ConfigurationError: it cannot work.
    """
    if isinstance(given, AsyncDatabase | AsyncCollection | AsyncMongoClient):
        raise ConfigurationError(f"this is an {type(given).__name__}: give it to AsyncMongoLockProvider")
    if isinstance(given, str):
        return ManagedClients(given, name, timeout)
    return UserCollection(_of_user(given, name, Database, Collection, MongoClient))


def find_async_store(
    given: object, name: str, timeout: Duration | None
) -> UserCollection[AsyncCollection[Record]] | ManagedAsyncClients:
    """:func:`find_store` for asyncio."""
    if isinstance(given, Database | Collection | MongoClient):
        raise ConfigurationError(f"this is a {type(given).__name__}, which is not async: give it to MongoLockProvider")
    if isinstance(given, str):
        return ManagedAsyncClients(given, name, timeout)
    return UserCollection(_of_user(given, name, AsyncDatabase, AsyncCollection, AsyncMongoClient))


def _of_user(given: Any, name: str, database: type, collection: type, client: type) -> Any:
    if issubclass(type(given), collection):
        if name not in (COLLECTION, given.name):
            raise ConfigurationError(f"collection={name!r}, but a collection was given: {given.name!r}")
        return given.with_options(**_SETTINGS)
    if issubclass(type(given), database):
        return _collection_of(given, name)
    if issubclass(type(given), client):
        raise ConfigurationError("this is a client: say which database the locks are in, as in client['database']")
    raise ConfigurationError(
        f"neither a database nor a collection of PyMongo, nor a mongodb:// URL: {type(given).__name__}"
    )


def _collection_of(database: Any, name: str) -> Any:
    try:
        collection = database.get_collection(name, **_SETTINGS)
        name.encode()  # a lone surrogate PyMongo would find out at the first use
        return collection
    except (InvalidName, TypeError, UnicodeError) as error:
        raise ConfigurationError(f"collection={name!r}: {error}") from error


class StoreUrl:
    """A ``mongodb://`` URL, checked, and what may be shown of it.

    ``has_limits``: it names PyMongo's limits for the parts of an operation, which then count in place of ours.
    """

    def __init__(self, url: str, timeout: Duration | None) -> None:
        url, self.options = split_options(url)
        self._url = url
        scheme, separator, rest = url.partition("://")
        if scheme not in ("mongodb", "mongodb+srv") or not separator:
            raise ConfigurationError("store URL: not of the form mongodb://user@host/database")
        self._userinfo, _, location = rest.rpartition("@")
        place, _, query = location.partition("?")
        self.shown = f"{scheme}://{'***@' if self._userinfo else ''}{place}"
        given = _parsed(query)
        if given.get("timeoutms"):  # PyMongo's own name for the same limit
            self.options.setdefault("timeout", str(given["timeoutms"]))
        seconds = parse_timeout(timeout, self.options.get("timeout"), is_managed=True)
        self.has_limits = timeout is None and "timeout" not in self.options and bool(_LIMITS & given.keys())
        self._options = _defaults(given, seconds)

    def open(self) -> MongoClient[Record]:
        """A small client of our own; connects at first use."""
        client: MongoClient[Record] = self._open(MongoClient)
        return client

    def open_async(self) -> AsyncMongoClient[Record]:
        client: AsyncMongoClient[Record] = self._open(AsyncMongoClient)
        return client

    def _open(self, make: Callable[..., Any]) -> Any:
        try:
            return make(self._url, connect=False, **self._options)
        except (PyMongoError, ValueError, TypeError) as error:
            if "dnspython" in str(error):
                raise ConfigurationError("mongodb+srv:// needs the package dnspython: pip install dnspython") from None
            # The words of the driver may quote what is before the host, where a password can be.
            words = "" if self._userinfo else f": {error}"
        raise ConfigurationError(f"store URL: not of the form mongodb://user@host/database?option=value{words}")

    def redact(self, message: str) -> str:
        """``message`` without the password, should it be in there."""
        password = self._userinfo.partition(":")[2]
        for text in {password, unquote_plus(password)} - {""}:
            message = message.replace(text, "***")
        return message


_LIMITS = {"connecttimeoutms", "serverselectiontimeoutms", "sockettimeoutms", "waitqueuetimeoutms"}


def _parsed(query: str) -> Mapping[str, Any]:
    """The options of a URL by their names in small letters. PyMongo itself only warns of bad ones, and goes without."""
    if not query:
        return {}
    try:
        return {name.lower(): value for name, value in split_uri_options(query, validate=True, warn=False).items()}
    except (PyMongoError, ValueError, TypeError) as error:
        raise ConfigurationError(f"store URL: {error}") from None


def _defaults(given: Mapping[str, Any], seconds: float | None) -> dict[str, Any]:
    """What the URL does not say. PyMongo prefers keyword arguments to the URL.

    Each command has what is left of ``seconds`` (``pymongo.timeout``). The client's own limits are for what PyMongo
    does besides: its monitors, and connections that it opens in advance.
    """
    milliseconds = max(1, round((seconds or 0) * 1000))
    defaults: dict[str, Any] = {
        **dict.fromkeys(
            ("connectTimeoutMS", "serverSelectionTimeoutMS", "socketTimeoutMS", "waitQueueTimeoutMS"), milliseconds
        ),
        "appname": "shedlock_py",
        "maxPoolSize": POOL_SIZE,
        # No hidden retries: the kit knows what may be sent again, and a retryable write writes more.
        "retryWrites": False,
        "retryReads": False,
    }
    return {name: value for name, value in defaults.items() if name.lower() not in given}


class ManagedClients:
    """The clients of one URL: one for each process, because none survives a fork."""

    def __init__(self, url: str, collection: str, timeout: Duration | None) -> None:
        self._url = StoreUrl(url, timeout)
        self.options = self._url.options
        self.has_limits = self._url.has_limits
        self.shown, self.redact = f" at {self._url.shown}", self._url.redact
        self._name = collection
        self._clients: dict[int, MongoClient[Record]] = {}
        self.full_name = self.collection().full_name

    def collection(self) -> Collection[Record]:
        # Those of the parent stay where they are: neither to use, nor to close, nor to forget.
        client = self._clients.get(os.getpid())
        if client is None:
            client = self._clients.setdefault(os.getpid(), self._url.open())  # a second one, of a race, is not opened
        collection: Collection[Record] = _of_client(client, self._name)
        return collection

    def close(self) -> None:
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()


class ManagedAsyncClients:
    """:class:`ManagedClients` for asyncio: one for each event loop, to which connections belong."""

    def __init__(self, url: str, collection: str, timeout: Duration | None) -> None:
        self._url = StoreUrl(url, timeout)
        self.options = self._url.options
        self.has_limits = self._url.has_limits
        self.shown, self.redact = f" at {self._url.shown}", self._url.redact
        self._name = collection
        self._clients: dict[asyncio.AbstractEventLoop, AsyncMongoClient[Record]] = {}
        self._inherited: list[dict[asyncio.AbstractEventLoop, AsyncMongoClient[Record]]] = []
        self._process = os.getpid()
        self.full_name = str(_of_client(self._url.open_async(), collection).full_name)

    def collection(self) -> AsyncCollection[Record]:
        if self._process != os.getpid():
            self._inherited.append(self._clients)
            self._clients = {}
            self._process = os.getpid()
        # Loops run in several threads, but each adds only itself, and each step is atomic: no lock, which a fork could
        # leave taken.
        loop = asyncio.get_running_loop()
        mine = self._clients.get(loop)
        if mine is None:
            for other in list(self._clients):
                if other.is_closed():
                    self._clients.pop(other, None)  # its sockets end when they are collected; nothing else can end them
            mine = self._clients[loop] = self._url.open_async()
        collection: AsyncCollection[Record] = _of_client(mine, self._name)
        return collection

    async def close(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None) if self._process == os.getpid() else None
        if client is not None:
            await client.close()


def _of_client(client: Any, name: str) -> Any:
    return _collection_of(client.get_default_database(DATABASE), name)
