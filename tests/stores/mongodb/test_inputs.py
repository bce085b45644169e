"""Invalid URLs, objects and values are rejected with helpful messages; odd but valid ones are kept unchanged."""

import logging
import pickle
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient

from shedlock_py import ConfigurationError, LockRequest, ProviderError
from shedlock_py import ProviderUnreachable as Unreachable
from shedlock_py.providers.mongodb import AsyncMongoLockProvider, MongoLockProvider
from shedlock_py.providers.mongodb.mongo_clients import CollectionClient
from shedlock_py.testing.blocking import BlockingLockProvider
from tests.stores.mongodb.stores import SLOW_SERVER, Store
from tests.support.locks import acquired, record_of
from tests.support.logs import warnings_of
from tests.support.mongodb import PrivateMongoServer
from tests.support.server_process import ServerError

BOTH: list[Any] = [MongoLockProvider, AsyncMongoLockProvider]


# Objects


def test_a_client_of_the_other_kind_is_refused() -> None:
    client: Any = MongoClient("mongodb://h", connect=False)
    async_client: Any = AsyncMongoClient("mongodb://h")
    for given in (client, client.db, client.db.locks):
        with pytest.raises(ConfigurationError, match="give it to MongoLockProvider"):
            AsyncMongoLockProvider(given)
    for given in (async_client, async_client.db, async_client.db.locks):
        with pytest.raises(ConfigurationError, match="give it to AsyncMongoLockProvider"):
            MongoLockProvider(given)
    for make, given in ((MongoLockProvider, client), (AsyncMongoLockProvider, async_client)):
        with pytest.raises(ConfigurationError, match=r"client\['database'\]"):
            make(given)


@pytest.mark.parametrize("nonsense", [None, 5, b"mongodb://h", object(), ["mongodb://h"]])
@pytest.mark.parametrize("make", BOTH)
def test_what_is_neither_url_nor_client_is_refused(make: Any, nonsense: Any) -> None:
    with pytest.raises(ConfigurationError, match="database"):
        make(nonsense)


@pytest.mark.parametrize("collection", ["", "a..b", "$a", ".a", "a\x00b", 5, None])
@pytest.mark.parametrize("make", BOTH)
def test_a_name_that_no_collection_can_have_is_refused(make: Any, collection: Any) -> None:
    with pytest.raises(ConfigurationError, match="collection="):
        make("mongodb://h", collection=collection)


def test_a_provider_shows_its_collection() -> None:
    client = MongoClient[Any]("mongodb://h", connect=False)
    assert "<MongoLockProvider db.shedlock>" in repr(MongoLockProvider(client.db))
    assert "db.locks" in repr(MongoLockProvider(client.db, collection="locks"))
    assert "db.locks" in repr(MongoLockProvider(client.db.locks))
    with pytest.raises(ConfigurationError, match="a collection was given"):
        MongoLockProvider(client.db.locks, collection="others")
    assert "<MongoLockProvider shedlock.shedlock at mongodb://h>" in repr(MongoLockProvider("mongodb://h"))
    assert "<MongoLockProvider jobs.shedlock at mongodb://h:1,i:2/jobs>" in repr(
        MongoLockProvider("mongodb://h:1,i:2/jobs?replicaSet=rs&appname=x")
    )


# URLs


@pytest.mark.parametrize(
    "url",
    [
        "", "mongodb", "://", "mongodb://", "postgresql://u:hunter2@h/db", "mongodb://u:hunter2@h:port/db",
        "mongodb://u:hunter2@h:99999999/db", "mongodb://u:hunter2@@h/db", "mongodb://u:hun%ter2@h", "mongodb+srv://h:5",
        "mongodb://u:hunter2@h/?w=-3", "mongodb://u:hunter2@h/?timeoutMS=soon",
        "mongodb://u:hunter2@h/?authMechanism=PASSWORD", "mongodb://h/a b", "mongodb://h/?nonsense=1", "mongodb://h/?readPreference=nearby",
        "mongodb://h/jobs.locks", "mongodb://u:hunter2@h/jobs.a.b?w=1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("make", BOTH)
def test_urls_that_cannot_work(make: Any, url: str) -> None:
    with pytest.raises(ConfigurationError, match="store URL") as refused:
        make(url)
    for error in (refused.value, refused.value.__cause__, refused.value.__context__):
        assert "hunter2" not in repr(error)


@pytest.mark.parametrize("make", BOTH)
def test_a_url_connects_at_first_use(make: Any) -> None:
    for url in ("mongodb://u:hunter2@127.0.0.1:9/locks", "mongodb+srv://u:hunter2@nowhere.invalid/locks"):
        provider = make(url)
        assert "hunter2" not in repr(provider)
        assert url.partition("@")[2] in repr(provider)


def test_i5_a_host_that_no_name_server_knows_is_an_outage() -> None:
    provider = MongoLockProvider("mongodb+srv://u:hunter2@nowhere.invalid/locks")
    with pytest.raises(Unreachable) as error:
        provider.acquire(LockRequest("job", "1m"))
    assert "hunter2" not in "".join(traceback.format_exception(error.value))
    provider.close()


def test_options_of_the_url_win_over_the_defaults() -> None:
    def options(url: str) -> Any:
        return CollectionClient(url, "shedlock", None, None).collection().database.client.options

    defaults = options("mongodb://h")
    assert (defaults.server_selection_timeout, defaults.retry_writes) == (5, False)
    pool = defaults.pool_options
    assert (pool.max_pool_size, pool.connect_timeout, pool.socket_timeout, pool.appname) == (20, 5, 5, "shedlock_py")
    given = options("mongodb://h/?timeoutMS=700&maxPoolSize=3&appName=mine&retryWrites=true")
    assert (given.timeout, given.server_selection_timeout, given.retry_writes) == (0.7, 0.7, True)
    assert (given.pool_options.max_pool_size, given.pool_options.appname) == (3, "mine")
    given = options("mongodb://h/?socketTimeoutMS=700")
    assert (given.timeout, given.pool_options.socket_timeout, given.server_selection_timeout) == (None, 0.7, 5)


@pytest.mark.parametrize(
    ("query", "given", "seconds"),
    [
        ("", None, 5),
        ("?timeout=3s", None, 3),
        ("?timeout=0.5", None, 0.5),
        ("?timeoutMS=700", None, 0.7),
        ("", "2s", 2),
    ],
)
def test_i13_the_url_or_an_argument_sets_the_time_limit(query: str, given: str | None, seconds: float) -> None:
    assert MongoLockProvider(f"mongodb://h/{query}", timeout=given).programs.timeout == seconds


def test_i13_a_users_client_has_limits_of_its_own() -> None:
    client = MongoClient[Any]("mongodb://h", connect=False)
    with pytest.raises(ConfigurationError, match="timeout= is for providers that are made from a URL"):
        MongoLockProvider(client.db, timeout="3s")


# Passwords


@pytest.fixture(scope="module")
def strict_server() -> Iterator[PrivateMongoServer]:
    """A server that requires a password."""
    try:
        server = PrivateMongoServer()
    except ServerError as error:
        pytest.skip(f"needs a private server: {error}")
    with server:
        with server.connect() as client:
            roles = [{"role": "readWrite", "db": "locks"}]
            client.locks.command("createUser", "app", pwd="p@ss:w/rd", roles=roles)
        server.restart_with("--auth")
        yield server


@pytest.mark.parametrize("userinfo", ["app:hunter2@", "app:hun%2Fter2@", "nobody:hunter2@", ""])
@pytest.mark.parametrize("is_async", [False, True])
def test_no_error_and_no_log_record_shows_the_password(
    strict_server: PrivateMongoServer, userinfo: str, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    strict_server.userinfo = userinfo
    url = strict_server.url("locks")
    strict_server.userinfo = ""
    provider: Any = BlockingLockProvider(lambda: AsyncMongoLockProvider(url)) if is_async else MongoLockProvider(url)
    with pytest.raises(ProviderError) as refused:
        provider.acquire(LockRequest("job", "1m"))
    assert not isinstance(refused.value, Unreachable)
    error = refused.value
    said = [str(error), repr(error), repr(provider), *traceback.format_exception(error), caplog.text]
    said += [repr(pickle.loads(pickle.dumps(error))), repr(getattr(provider, "async_provider", ""))]
    assert [line for line in said if "hunter2" in line or "hun/ter2" in line or "hun%2Fter2" in line] == []
    provider.close()


def test_the_right_password_and_a_right_that_is_missing(strict_server: PrivateMongoServer) -> None:
    strict_server.userinfo = "app:p%40ss%3Aw%2Frd@"
    url = strict_server.url("locks")
    provider = MongoLockProvider(url)
    assert provider.release(acquired(provider, "job"))
    provider.close()
    provider = MongoLockProvider(url.replace("/locks", "/others") + "?authSource=locks")
    with pytest.raises(ProviderError, match=r"not authorized|requires authentication"):
        provider.acquire(LockRequest("job", "1m"))
    provider.close()

    with BlockingLockProvider(lambda: AsyncMongoLockProvider(url)) as facade:
        assert facade.release(acquired(facade, "job"))


# Values

EXPRESSIONS = ["$lockUntil", "$$NOW", "$$ROOT", "$$REMOVE", '{"$ne": 1}', "$", "$$", "a.b", "_id"]


def test_expressions_are_names_and_holders_like_others(store: Store) -> None:
    provider = store.provider(**SLOW_SERVER)
    for text in EXPRESSIONS:
        lease = acquired(provider, text, holder=text)
        assert record_of(provider, text).holder == text
        assert provider.acquire(LockRequest(text, "1m", holder=text)) is None
        assert provider.extend(lease, "2m") is lease
        assert provider.release(lease) is True
        assert provider.take_over(LockRequest(text, "1m", holder=text))
        assert provider.force_release(text)
    assert [record.name for record in provider.records()] == sorted(EXPRESSIONS)
    assert [record.name for record in provider.records("$$")] == ["$$", "$$NOW", "$$REMOVE", "$$ROOT"]


def test_a_prefix_finds_names_at_the_end_of_unicode(store: Store) -> None:
    provider = store.provider(**SLOW_SERVER)
    names = ["a", "a\U0010fffd", "a\U0010ffff", "a\U0010ffff\U0010ffff", "b"]
    for name in names:
        acquired(provider, name)
    assert [record.name for record in provider.records("a")] == names[:4]


ODD: list[tuple[str, object]] = [
    ("lockUntil", "soon"),
    ("fencingToken", "seven"),
    ("fencingToken", 1.5e300),
    ("fencingToken", True),
    ("lastFireTime", "yesterday"),
    ("lastFireTime", datetime(2024, 1, 1, tzinfo=UTC)),
    ("lastFireTime", 2**62),
    ("lockedBy", 7),
    ("lockedAt", None),
]


def test_a_document_with_an_odd_value_is_an_error_for_its_name_only(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """An impossible value in a record must not make a job skip forever."""
    provider = store.provider(**SLOW_SERVER)
    assert provider.release(acquired(provider, "sound"))
    for number, (field, value) in enumerate(ODD):
        odd = f"odd-{number}"
        assert provider.release(provider.take_over(LockRequest(odd, "1m")))
        store.documents.update_one({"_id": odd}, {"$set": {field: value}})
        with pytest.raises(ProviderError, match=f"lock '{odd}'.*is no lock record"):
            provider.record(odd)
        assert [record.name for record in provider.records()] == ["sound"]
        assert warnings_of(caplog, odd)
        request = LockRequest(odd, "1m", fire_time=datetime(2024, 5, 1, tzinfo=UTC))
        with pytest.raises(ProviderError, match=f"lock '{odd}'.*is no lock record"):
            provider.take_over(request)
        if field in ("lockedBy", "lockedAt"):  # these fields decide nothing
            assert provider.release(acquired(provider, odd))
            assert provider.record(odd)
        else:
            with pytest.raises(ProviderError, match=f"lock '{odd}'.*is no lock record"):
                provider.acquire(request)
        store.documents.delete_one({"_id": odd})


def test_documents_of_somebody_else_stay(store: Store, name: str) -> None:
    provider = store.provider(**SLOW_SERVER)
    store.documents.insert_one({"_id": name, "text": "of somebody else"})
    provider.prune(0)
    acquired(provider, name)
    assert store.documents.find_one({"_id": name, "text": "of somebody else"})
