"""Rejections by Redis: helpful messages, without passwords."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderError, ProviderUnreachable
from tests.stores.redis.stores import URL_KINDS, Store, send, through
from tests.support.availability import private_server
from tests.support.locks import acquired, record_of
from tests.support.redis import RedisServer

SECRETS = ["hunter2", "hun/ter:2@%41 x?#"]


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    """A server with a password."""
    with private_server("redis", lambda: RedisServer(config={"requirepass": "s3cret-pw"})) as server:
        yield server


@pytest.fixture
def guarded_store(guarded: RedisServer, kind: str) -> Iterator[Store]:
    store = Store(guarded, kind)
    with store.stack:
        yield store


MAY_NOT_RUN = "can't run this command|no permissions to run"
"""The messages of Redis 7.0, and of newer versions and Valkey."""


def assert_refused(provider: LockProvider, name: str, words: str = "") -> ProviderError:
    with pytest.raises(ProviderError, match=words) as refused:
        provider.acquire(LockRequest(name, "1m"))
    error = refused.value
    assert not isinstance(error, ProviderUnreachable), "the server replied"
    assert (error.operation, error.lock_name) == ("acquire", name)
    assert error.__cause__ is not None
    return error


@through(*URL_KINDS, "once", "async once")
@pytest.mark.parametrize("secret", SECRETS)
def test_a_wrong_password_is_refused_and_not_shown(
    guarded_store: Store, secret: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    host, port = guarded_store.server.address
    assert_refused(guarded_store.provider(url=f"redis://{host}:{port}"), name, r"(?i)auth")
    for url in (
        f"redis://:{quote(secret, safe='')}@{host}:{port}",
        f"redis://{host}:{port}?password={quote(secret, safe='')}",
        f"redis://{quote(secret, safe='')}:{quote(secret, safe='')}@{host}:{port}",
    ):
        provider = guarded_store.provider(url=url)
        error = assert_refused(provider, name, r"(?i)password")
        inner = getattr(provider, "async_provider", provider)
        texts = [str(error), repr(error), repr(inner), *traceback.format_exception(error), caplog.text]
        texts += [repr(pickle.loads(pickle.dumps(error)))]
        for line in texts:
            assert secret not in line
            assert quote(secret, safe="") not in line


@through(*URL_KINDS, "once", "async once")
@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (("~*", "+@all", "-evalsha", "-eval"), "evalsha"),
        (("~other:*", "+@all"), "permission"),
        (("~*", "+@all", "-hset"), MAY_NOT_RUN),
        (("~*", "+@all", "-pexpire"), MAY_NOT_RUN),  # the last command of the script
    ],
)
def test_a_user_who_lacks_a_permission_is_refused(
    guarded_store: Store, rules: tuple[str, ...], words: str, name: str
) -> None:
    user = f"u-{name}"
    host, port = guarded_store.server.address
    with guarded_store.server.client() as client:
        send(client, "ACL", "SETUSER", user, "on", ">hunter2", *rules)
        provider = guarded_store.provider(url=f"redis://{user}:hunter2@{host}:{port}")
        error = assert_refused(provider, name, words)
        assert "hunter2" not in "".join(traceback.format_exception(error))
        record = guarded_store.provider().record(name)
        assert record is None or not record.is_held, "nothing stays granted"
        send(client, "ACL", "SETUSER", user, "~*", "+@all")
        assert provider.release(acquired(provider, name))
        send(client, "ACL", "DELUSER", user)


@through(*URL_KINDS)
@pytest.mark.parametrize(
    ("lacks", "operations"),
    [
        ("hmget", ["record", "records", "prune", "force_release", "resume"]),
        ("hgetall", ["runs", "recent_runs"]),
    ],
)
def test_a_tool_that_may_not_read_is_refused(
    guarded_store: Store, lacks: str, operations: list[str], kind: str, name: str
) -> None:
    """The error must not be "no lock record" or "no runs": a monitor would then call each job healthy."""
    user, (host, port) = f"u-{name}", guarded_store.server.address
    arguments: dict[str, list[Any]] = {"records": [""], "prune": [0], "recent_runs": [[name]]}
    with guarded_store.server.client() as client:
        send(client, "ACL", "SETUSER", user, "on", ">hunter2", "~*", "+@all", f"-{lacks}")
        url = f"redis://{{}}{host}:{port}"
        full, limited = (
            guarded_store.provider(url=url.format(login), history=5) for login in (":s3cret-pw@", f"{user}:hunter2@")
        )
        acquired(full, name)
        for operation in operations:
            with pytest.raises(ProviderError, match=MAY_NOT_RUN) as refused:
                getattr(limited, operation)(*arguments.get(operation, [name]))
            assert not isinstance(refused.value, ProviderUnreachable), "the server replied"
        send(client, "ACL", "DELUSER", user)


@through(*URL_KINDS)
@pytest.mark.parametrize("foreign", ["SET {} v", "RPUSH {} v", "SADD {} v", "ZADD {} 1 v", "XADD {} * f v"])
def test_a_foreign_key_of_that_name_is_an_error(store: Store, foreign: str, name: str) -> None:
    key = f"shedlock:{{{name}}}"
    provider = store.provider()
    with store.server.client() as client:
        send(client, *foreign.format(key).split())
        kind_of_key = client.type(key)
        assert_refused(provider, name, "choose another key_prefix")
        with pytest.raises(ProviderError, match="choose another key_prefix"):
            provider.take_over(LockRequest(name, "1m"))
        assert provider.force_release(name) is False, "there is no lock record"
        assert provider.record(name) is None
        assert provider.records(name) == []
        assert client.type(key) == kind_of_key
        client.delete(key)
    assert provider.release(acquired(provider, name))
    assert not record_of(provider, name).is_held


@through("url")
def test_i1_one_server_of_a_cluster_grants_no_name_of_the_others(kind: str, redis_cluster: Any, name: str) -> None:
    """Other servers have two thirds of the names: an error, never a grant in the wrong place."""
    store = Store(redis_cluster.nodes[0], kind)
    with store.stack:
        provider = store.provider()
        outcomes = []
        for i in range(20):
            try:
                lease = provider.acquire(LockRequest(f"{name}-{i}", "1m"))
                assert lease
                outcomes.append("granted")
            except ProviderError as error:
                outcomes.append(type(error).__name__)
    assert set(outcomes) == {"granted", "ProviderError"}
