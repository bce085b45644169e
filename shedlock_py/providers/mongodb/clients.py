"""Where the records are: in a collection of a user-supplied client, or of clients that are opened from a URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC
from typing import Any
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

from shedlock_py._process import PerLoop, PerProcess
from shedlock_py.durations import Duration
from shedlock_py.errors import ConfigurationError
from shedlock_py.providers.kit import parse_timeout, split_options

COLLECTION = "shedlock"
DATABASE = "shedlock"
"""Where a URL names none."""
MAJORITY_MS = 5000
"""How long the server waits for a majority on behalf of a user-supplied client that has no ``timeoutMS``."""
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
_SYNC = (Database, Collection, MongoClient)
_ASYNC = (AsyncDatabase, AsyncCollection, AsyncMongoClient)
_LIMITS = {"connecttimeoutms", "serverselectiontimeoutms", "sockettimeoutms", "waitqueuetimeoutms"}


class UserStore:
    """A collection of a user-supplied client, with the settings that a lock needs."""

    url: StoreUrl | None = None

    def __init__(self, collection: Any) -> None:
        self._collection = collection
        self.full_name = self.shown = str(collection.full_name)

    def collection(self) -> Any:
        return self._collection

    def pop_client(self) -> Any:
        """None: the user closes the client."""
        return None


class ManagedStore:
    """A collection of the clients of one URL: one for each process, or for asyncio one for each event loop."""

    def __init__(self, url: StoreUrl, collection: str, *, is_async: bool) -> None:
        self.url: StoreUrl | None = url
        self._name = collection
        self._clients: PerLoop[Any] | PerProcess[Any] = (
            PerLoop(lambda: url.open(AsyncMongoClient)) if is_async else PerProcess(lambda: url.open(MongoClient))
        )
        self.full_name = str(_of_client(url.open(MongoClient), collection).full_name)
        self.shown = f"{self.full_name} at {url.shown}"

    def collection(self) -> Any:
        return _of_client(self._clients.get(), self._name)

    def pop_client(self) -> Any:
        """The client of this process and event loop, to close it; None: there is none."""
        return self._clients.pop()


def find_store(given: object, name: str, timeout: Duration | None, *, is_async: bool) -> UserStore | ManagedStore:
    """The store that ``given`` means: a database, a collection or a URL.

    :raises ConfigurationError: it cannot work.
    """
    if isinstance(given, str):
        return ManagedStore(StoreUrl(given, timeout), name, is_async=is_async)
    database, collection, client = _ASYNC if is_async else _SYNC
    if isinstance(given, _SYNC if is_async else _ASYNC):
        other = "MongoLockProvider" if is_async else "AsyncMongoLockProvider"
        raise ConfigurationError(f"this is of the type {type(given).__name__}: give it to {other}")
    if isinstance(given, client):
        raise ConfigurationError("this is a client: say which database the locks are in, as in client['database']")
    if isinstance(given, database):
        return UserStore(_collection_of(given, name))
    if isinstance(given, Collection | AsyncCollection) and isinstance(given, collection):
        if name not in (COLLECTION, given.name):
            raise ConfigurationError(f"collection={name!r}, but a collection was given: {given.name!r}")
        return UserStore(given.with_options(**_SETTINGS))
    raise ConfigurationError(
        f"neither a database nor a collection of PyMongo, nor a mongodb:// URL: {type(given).__name__}"
    )


def _of_client(client: Any, name: str) -> Any:
    return _collection_of(client.get_default_database(DATABASE), name)


def _collection_of(database: Any, name: str) -> Any:
    try:
        collection = database.get_collection(name, **_SETTINGS)
        name.encode()  # PyMongo would find a lone surrogate at the first use
        return collection
    except (InvalidName, TypeError, UnicodeError) as error:
        raise ConfigurationError(f"collection={name!r}: {error}") from error


class StoreUrl:
    """A ``mongodb://`` URL, checked, and what may be shown of it.

    ``options`` are those of the library. ``has_limits``: the URL names PyMongo's limits for the parts of an operation,
    which then replace ``timeout``.
    """

    def __init__(self, url: str, timeout: Duration | None) -> None:
        self._url, self.options = split_options(url)
        scheme, separator, rest = self._url.partition("://")
        if scheme not in ("mongodb", "mongodb+srv") or not separator:
            raise ConfigurationError("store URL: not of the form mongodb://user@host/database")
        self._userinfo, _, location = rest.rpartition("@")
        place, _, query = location.partition("?")
        self.shown = f"{scheme}://{'***@' if self._userinfo else ''}{place}"
        given = _parsed(query)
        if given.get("timeoutms"):  # PyMongo's own name for the same limit
            self.options.setdefault("timeout", str(given["timeoutms"]))
        self.timeout = parse_timeout(timeout, self.options.get("timeout"), is_managed=True)
        self.has_limits = timeout is None and "timeout" not in self.options and bool(_LIMITS & given.keys())
        self._client_options = _defaults(given, self.timeout)

    def open(self, make: Callable[..., Any]) -> Any:
        """A small client, which connects at its first use."""
        try:
            return make(self._url, connect=False, **self._client_options)
        except (PyMongoError, ValueError, TypeError) as error:
            if "dnspython" in str(error):
                raise ConfigurationError("mongodb+srv:// needs the package dnspython: pip install dnspython") from None
            # The driver's words may quote what is before the host, where a password can be.
            words = "" if self._userinfo else f": {error}"
        raise ConfigurationError(f"store URL: not of the form mongodb://user@host/database?option=value{words}")

    def redact(self, message: str) -> str:
        """``message`` without the password, should it be in there."""
        password = self._userinfo.partition(":")[2]
        for text in {password, unquote_plus(password)} - {""}:
            message = message.replace(text, "***")
        return message


def _parsed(query: str) -> Mapping[str, Any]:
    """The options of a URL by their names in lower case. PyMongo itself only warns of bad ones, and ignores them."""
    if not query:
        return {}
    try:
        return {name.lower(): value for name, value in split_uri_options(query, validate=True, warn=False).items()}
    except (PyMongoError, ValueError, TypeError) as error:
        raise ConfigurationError(f"store URL: {error}") from None


def _defaults(given: Mapping[str, Any], seconds: float | None) -> dict[str, Any]:
    """Options that the URL does not set. PyMongo prefers keyword arguments to the URL.

    Each command gets what is left of ``seconds`` (``pymongo.timeout``). The client's own limits are for what PyMongo
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
