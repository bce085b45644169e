"""A quorum's servers: URLs and clients, and errors in them. The tests do not connect."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from shedlock_py import (
    ConfigurationError,
    Lease,
    LockProvider,
    LockRequest,
    ProviderUnreachable,
    async_provider_from_url,
    provider_from_url,
)
from shedlock_py.providers.kit import locking
from shedlock_py.providers.redis import AsyncRedisQuorumLockProvider, RedisQuorumLockProvider
from shedlock_py.providers.redis.quorum.quorum_provider import split_servers
from tests.stores.redis_quorum.quorums import NAME, Quorum, acquired

KINDS: dict[str, Any] = {"sync": RedisQuorumLockProvider, "async": AsyncRedisQuorumLockProvider}
CLIENTS: dict[str, Any] = {"sync": redis.Redis, "async": redis.asyncio.Redis}
PASSWORD = "s3cret-pw"


def test_one_url_names_all_servers(kind: str) -> None:
    url = f"redis+quorum://user:{PASSWORD}@h1:6379,h2, h3:6380/2?longest_lease=2h&socket_timeout=1"
    urls, options = split_servers(url)
    assert urls == [f"redis://user:{PASSWORD}@{place}/2?socket_timeout=1" for place in ("h1:6379", "h2", "h3:6380")]
    assert options == {"longest_lease": "2h"}
    provider = KINDS[kind](url)
    assert repr(provider) == f"<{type(provider).__name__} at h1:6379/2, h2:6379/2, h3:6380/2>"
    with pytest.raises(ConfigurationError, match=r"longer than longest_lease \(2:00:00\)"):
        next(locking.acquire(provider.programs, LockRequest(NAME, "121m")))
    assert next(locking.acquire(provider.programs, LockRequest(NAME, "2h")))


@pytest.mark.parametrize(
    ("servers", "places"),
    [
        ("h1,h2,h3", ["h1:6379", "h2:6379", "h3:6379"]),
        ("h1:1,h1:2,h1:3", ["h1:1", "h1:2", "h1:3"]),
        ("[::1],[::1]:7,[fe80::2]:8", ["::1:6379", "::1:7", "fe80::2:8"]),
        ("10.0.0.1,10.0.0.2:9,redis-3.internal", ["10.0.0.1:6379", "10.0.0.2:9", "redis-3.internal:6379"]),
        ("a,b,c,d,e", ["a:6379", "b:6379", "c:6379", "d:6379", "e:6379"]),
    ],
)
def test_servers_are_read_from_the_url(kind: str, servers: str, places: list[str]) -> None:
    provider = KINDS[kind](f"redis+quorum://{servers}")
    assert repr(provider).partition(" at ")[2] == ", ".join(f"{place}/0" for place in places) + ">"


def test_an_error_names_a_server_by_its_socket(tmp_path: Path) -> None:
    places = [tmp_path / str(number) for number in (6379, 6380, 6381)]
    with ExitStack() as stack:
        for place in places:
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            silent.bind(str(place))
            silent.listen()
        clients = [redis.Redis(unix_socket_path=str(place)) for place in places]
        with pytest.raises(ProviderUnreachable) as silence:
            RedisQuorumLockProvider(clients).acquire(LockRequest(NAME, "1m"))
    assert f"unix://{places[0]}: no reply within" in str(silence.value)


def test_masters_that_sentinels_name_are_servers(kind: str) -> None:
    """Only the Sentinels know the masters' addresses, so nothing shows that the masters differ."""
    sentinels: dict[str, Any] = {"sync": redis.sentinel.Sentinel, "async": redis.asyncio.sentinel.Sentinel}
    clients = [sentinels[kind]([(f"sentinel-{group}", 26379)]).master_for("mymaster") for group in "abc"]
    assert repr(KINDS[kind](clients)).count("the master that Sentinel names") == 3


@pytest.mark.parametrize("written", ["p%40ss%2Fw%23rd", "p@ss", ""])
def test_a_password_is_that_of_each_server_and_not_shown(kind: str, written: str) -> None:
    url = f"redis+quorum://:{written}@h1,h2,h3"
    assert split_servers(url)[0] == [f"redis://:{written}@{host}" for host in ("h1", "h2", "h3")]
    assert not written or written not in repr(KINDS[kind](url))


def test_provider_from_url_opens_a_quorum() -> None:
    assert isinstance(provider_from_url("redis+quorum://h1,h2,h3"), RedisQuorumLockProvider)
    assert isinstance(async_provider_from_url("rediss+quorum://h1,h2,h3"), AsyncRedisQuorumLockProvider)
    assert split_servers("rediss+quorum://h1,h2,h3")[0] == ["rediss://h1", "rediss://h2", "rediss://h3"]


BAD_URLS = {
    "redis+quorum://u:PW@h1": "an odd number of servers, 3 or 5, not 1",
    "redis+quorum://u:PW@h1,h2": "an odd number of servers, 3 or 5, not 2",
    "redis+quorum://u:PW@h1,h2,h3,h4": "an odd number of servers, 3 or 5, not 4",
    "redis+quorum://u:PW@h1,h2,h1": "h1:6379 is there twice",
    "redis+quorum://u:PW@h1,h2,h1:6379": "h1:6379 is there twice",
    "redis+quorum://": "host:port",
    "redis+quorum://u:PW@": "host:port",
    "redis+quorum://u:PW@h1,h2,": "host:port",
    "redis+quorum://u:PW@h1,,h2": "host:port",
    "redis+quorum://u:PW@h1:x,h2,h3": "host:port",
    "redis+quorum://u:PW@[::1,h2,h3": "host:port",
    "redis+quorum://u:PW@::1,h2,h3": "host:port",
    "redis+quorum://u:PW@h1 h2,h3,h4": "host:port",
    "redis+quorum://u:PW/x@h1,h2,h3": "percent-encoded",
    "redis+quorum://u:PW?x@h1,h2,h3": "percent-encoded",
    "redis+quorum://u:PW#x@h1,h2,h3": "percent-encoded",
    "redis+quorum://u:PW@h1:99999,h2,h3": "bad Redis URL",
    "redis+quorum://u:PW@h1,h2,h3?longest_lease=soon": "longest_lease='soon' is not a duration",
    "redis+quorum://u:PW@h1,h2,h3?socket_timeout=soon": "socket_timeout",
    "redis+quorum://u:PW@h1,h2,h3?nonsense=1": "nonsense",
    "redis://u:PW@h1,h2,h3": r"looks like redis\+quorum://host1,host2,host3",
    "mongodb+quorum://u:PW@h1,h2,h3": r"looks like redis\+quorum://host1,host2,host3",
    "h1,h2,h3": r"looks like redis\+quorum://host1,host2,host3",
}


@pytest.mark.parametrize("url", BAD_URLS)
def test_bad_urls_are_refused(kind: str, url: str) -> None:
    with pytest.raises(ConfigurationError, match=BAD_URLS[url]) as caught:
        KINDS[kind](url.replace("PW", PASSWORD))
    assert PASSWORD not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


BAD_LISTS: dict[str, Callable[[str], Any]] = {
    "not 2": lambda kind: ["redis://h1", "redis://h2"],
    "not 0": lambda kind: [],
    "h2:6379 is there twice": lambda kind: ["redis://h1", "redis://h2", "redis://h2/1"],
    "h1:6379 is there twice": lambda kind: [CLIENTS[kind](host="h1"), "redis://h1", "redis://h3"],
    "list of clients or URLs": lambda kind: CLIENTS[kind](),
    "not int": lambda kind: 5,
    "give it to|not one of redis.asyncio": lambda kind: [
        CLIENTS["async" if kind == "sync" else "sync"](host=host) for host in ("h1", "h2", "h3")
    ],
    "not of clusters": lambda kind: [a_cluster(kind), "redis://h2", "redis://h3"],
}


def a_cluster(kind: str) -> Any:
    if kind == "async":
        return redis.asyncio.RedisCluster(host="h1")
    return object.__new__(redis.RedisCluster)  # its constructor connects


@pytest.mark.parametrize("why", BAD_LISTS)
def test_bad_lists_are_refused(kind: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        KINDS[kind](BAD_LISTS[why](kind))


def test_bad_options_are_refused(kind: str) -> None:
    urls = ["redis://h1", "redis://h2", "redis://h3"]
    for options in ({"longest_lease": "0s"}, {"longest_lease": "10"}, {"key_prefix": "a\nb"}):
        with pytest.raises(ConfigurationError):
            KINDS[kind](urls, **options)


@pytest.fixture
def hour(quorum: Quorum, kind: str) -> tuple[LockProvider, Lease]:
    provider = quorum.provider(kind=kind, longest_lease="1h")
    return provider, acquired(provider, at_most="1h")


@pytest.mark.parametrize("size", [3])
def test_i1_a_lease_longer_than_the_longest_is_refused(hour: tuple[LockProvider, Lease]) -> None:
    """A restarted server would vote again during the lease."""
    provider, lease = hour
    before = lease.trusted_for()
    too_long: list[Callable[[], object]] = [
        lambda: provider.acquire(LockRequest("other", "3601s")),
        lambda: provider.take_over(LockRequest(NAME, "3601s")),
        lambda: provider.extend(lease, "3601s"),
    ]
    for work in too_long:
        with pytest.raises(ConfigurationError, match="make longest_lease longer"):
            work()
    assert provider.record("other") is None
    assert (before - lease.trusted_for()).total_seconds() < 10
    assert provider.extend(lease, "1h") is lease
    assert provider.release(lease)
