"""Clients execute commands in a collection of a user-supplied client, or of clients for a URL."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextvars import Context
from datetime import UTC
from operator import attrgetter
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote_plus

from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import AsyncMongoClient, MongoClient, ReadPreference, WriteConcern
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.command_cursor import AsyncCommandCursor
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.collection import Collection
from pymongo.command_cursor import CommandCursor
from pymongo.database import Database
from pymongo.errors import InvalidName, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import split_options as split_uri_options

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.durations import Duration
from shedlock_py.providers.kit import Masking, is_secret_option, parse_limits, split_options
from shedlock_py.providers.mongodb.commands import Command
from shedlock_py.providers.mongodb.errors import time_limit
from shedlock_py.runtime.process import PerLoop, PerProcess
from shedlock_py.runtime.versions import install_line

COLLECTION = "shedlock"
DATABASE = "shedlock"
"""The default if a URL names no database."""
MAJORITY_MS = 5000
"""How long the server waits for a majority if a user-supplied client has no ``timeoutMS``."""
POOL_SIZE = 20

# The user's settings are for the user's data. A lock always needs these settings.
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


class _BaseClient:
    """The collection of a database, a collection or a URL.

    :ivar full_name: the names of the database and the collection.
    :ivar shown: the full name and the place, for people.
    :ivar limits: the time limit of an operation, the tolerance of fire times, and the number of runs to keep.
    :ivar passwords: secrets that must not be shown, as the URL and the driver write them.
    :ivar names: other names in the URL, for messages.
    """

    _is_async: ClassVar[bool]
    _clients: PerProcess[Any] | PerLoop[Any] | None = None
    passwords: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def __init__(
        self,
        given: object,
        name: str,
        timeout: Duration | None,
        tolerance: Duration | None,
        history: int | None = None,
    ) -> None:
        """:raises ConfigurationError: ``given`` cannot work."""
        if isinstance(given, str):
            self._init_url(given, name, timeout, tolerance, history)
        else:
            self._collection = _user_collection(given, name, is_async=self._is_async)
            self.full_name = self.shown = str(self._collection.full_name)
            self.limits = parse_limits(timeout, tolerance, {}, is_managed=False, history=history)
            self._has_limits = True
            """PyMongo's settings limit the parts of an operation. They replace ``timeout``."""

    def _init_url(
        self, url: str, name: str, timeout: Duration | None, tolerance: Duration | None, history: int | None
    ) -> None:
        url, in_url = split_options(url)
        scheme, separator, rest = url.partition("://")
        if scheme not in ("mongodb", "mongodb+srv") or not separator:
            raise ConfigurationError("store URL: not of the form mongodb://user@host/database")
        userinfo, _, location = rest.rpartition("@")
        place, _, query = location.partition("?")
        given = _parsed(query)
        if given.get("timeoutms"):  # PyMongo's name for the same limit
            in_url.setdefault("timeout", str(given["timeoutms"]))
        self.limits = parse_limits(timeout, tolerance, in_url, is_managed=True, history=history)
        self._has_limits = timeout is None and "timeout" not in in_url and bool(_LIMITS & given.keys())
        user, _, password = userinfo.partition(":")
        self.passwords = (password, unquote_plus(password), *_secrets_in(query))
        self.names = (unquote_plus(user), *re.split("[,:/]", place))
        options = _defaults(given, self.limits["timeout"])

        def open_client(make: Any) -> Any:
            """Return a small client. It connects at its first use."""
            try:
                return make(url, connect=False, **options)
            except (PyMongoError, ValueError, TypeError) as error:
                if "dnspython" in str(error):
                    problem = "a store at mongodb+srv:// needs the package 'dnspython'"
                    raise ConfigurationError(f"{problem}: {install_line('mongodb')}") from None
                # The driver's message may quote the text before the host, which can contain a password.
                words = "" if userinfo else f": {error}"
            raise ConfigurationError(f"store URL: not of the form mongodb://user@host/database?option=value{words}")

        in_path = place.partition("/")[2].partition(".")[2]
        if in_path:  # PyMongo accepts this form, but takes only the database from it
            raise ConfigurationError(
                f"store URL: leave the collection out ('.{in_path}'), which was ignored: MongoLockProvider(url, "
                f"collection=…) takes one"
            )
        self._name = name
        self._clients = (
            PerLoop(lambda: open_client(AsyncMongoClient))
            if self._is_async
            else PerProcess(lambda: open_client(MongoClient))
        )
        self.full_name = str(_collection_of(open_client(MongoClient).get_default_database(DATABASE), name).full_name)
        self.shown = f"{self.full_name} at {scheme}://{'***@' if userinfo else ''}{place}"

    def collection(self) -> Any:
        """Return the collection for this process and event loop."""
        if self._clients is None:
            return self._collection
        return _collection_of(self._clients.get().get_default_database(DATABASE), self._name)


class CollectionClient(_BaseClient):
    """A client for threads."""

    _is_async = False

    def execute(self, command: Command, timeout: float | None) -> Any:
        def carry_out() -> Any:
            with time_limit(None if self._has_limits else timeout):
                result = attrgetter(command.method)(self.collection())(**command.arguments)
                return result.to_list() if isinstance(result, CommandCursor) else result

        # A new context: it has no session and no time limit that the caller set for PyMongo.
        return Context().run(carry_out)

    def close(self) -> None:
        """Close the client that was opened from a URL. A user-supplied client stays open."""
        client = None if self._clients is None else self._clients.pop()
        if client is not None:
            client.close()


class AsyncCollectionClient(_BaseClient):
    """A client for asyncio."""

    _is_async = True

    async def execute(self, command: Command, timeout: float | None) -> Any:  # noqa: ASYNC109 (of the kit's client)
        async def carry_out() -> Any:
            with time_limit(None if self._has_limits else timeout):
                result = await attrgetter(command.method)(self.collection())(**command.arguments)
                return await result.to_list() if isinstance(result, AsyncCommandCursor) else result

        return await asyncio.create_task(carry_out(), context=Context())

    async def close(self) -> None:
        client = None if self._clients is None else self._clients.pop()
        if client is not None:
            await client.close()


def _user_collection(given: object, name: str, *, is_async: bool) -> Any:
    """Return the user's collection with the settings that a lock needs."""
    database, collection, client = _ASYNC if is_async else _SYNC
    if isinstance(given, _SYNC if is_async else _ASYNC):
        other = "MongoLockProvider" if is_async else "AsyncMongoLockProvider"
        raise ConfigurationError(f"this is of the type {type(given).__name__}: give it to {other}")
    if isinstance(given, client):
        raise ConfigurationError("this is a client: pass the database of the locks, for example client['database']")
    if isinstance(given, database):
        return _collection_of(given, name)
    if isinstance(given, Collection | AsyncCollection) and isinstance(given, collection):
        if name not in (COLLECTION, given.name):
            raise ConfigurationError(f"collection={name!r}, but a collection was given: {given.name!r}")
        return given.with_options(**_SETTINGS)
    raise ConfigurationError(
        f"neither a database nor a collection of PyMongo, nor a mongodb:// URL: {type(given).__name__}"
    )


def _collection_of(database: Any, name: str) -> Any:
    try:
        collection = database.get_collection(name, **_SETTINGS)
        name.encode()  # PyMongo would report a lone surrogate only at first use
        return collection
    except (InvalidName, TypeError, UnicodeError) as error:
        raise ConfigurationError(f"collection={name!r}: {error}") from error


def _parsed(query: str) -> Mapping[str, Any]:
    """Return a URL's options with lower-case names. PyMongo would only warn of bad options, and ignore them."""
    if not query:
        return {}
    try:
        return {name.lower(): value for name, value in split_uri_options(query, validate=True, warn=False).items()}
    except (PyMongoError, ValueError, TypeError) as error:
        raise ConfigurationError(f"store URL: {Masking(_secrets_in(query)).masked(str(error))}") from None


def _secrets_in(query: str) -> list[str]:
    secrets = [value for name, value in parse_qsl(query) if is_secret_option(name)]
    # authMechanismProperties=AWS_SESSION_TOKEN:…,SERVICE_NAME:…
    properties = [each.partition(":") for _, value in parse_qsl(query) for each in value.split(",")]
    return secrets + [value for name, _, value in properties if is_secret_option(name)]


def _defaults(given: Mapping[str, Any], seconds: float | None) -> dict[str, Any]:
    """Return options that the URL does not set, because PyMongo prefers keyword arguments to the URL.

    A command gets the time that is left of ``seconds`` (``pymongo.timeout``). The limits here are for PyMongo's
    background work: monitors, and connections that it opens in advance.
    """
    milliseconds = max(1, round((seconds or 0) * 1000))
    defaults: dict[str, Any] = {
        **dict.fromkeys(
            ("connectTimeoutMS", "serverSelectionTimeoutMS", "socketTimeoutMS", "waitQueueTimeoutMS"), milliseconds
        ),
        "appname": "shedlock_py",
        "maxPoolSize": POOL_SIZE,
        # No hidden retries: the kit decides which commands to repeat, and a retryable write writes more.
        "retryWrites": False,
        "retryReads": False,
    }
    return {name: value for name, value in defaults.items() if name.lower() not in given}
