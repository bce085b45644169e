"""Checks of a server's settings, for ``shedlock doctor``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cli.harness import run
from tests.faults.pairs import RedisPair
from tests.stores.redis.stores import KINDS, URL_KINDS, Store, through
from tests.support.locks import checks_of, statuses
from tests.support.redis import RedisEndpoint

DEFAULTS = {"maxmemory": "0", "maxmemory-policy": "noeviction", "appendonly": "no", "save": "", "appendfsync": "always"}
ALL_WELL = {"eviction": "ok", "persistence": "ok", "replication": "ok"}


@contextmanager
def settings(server: RedisEndpoint, values: dict[str, str]) -> Iterator[None]:
    """Change settings of the server inside the block. Other settings keep the tests' values."""
    values = DEFAULTS | values
    with server.client() as client:
        before: dict[str, Any] = {name: client.config_get(name)[name] for name in values}
        try:
            for name, value in values.items():
                client.config_set(name, value)
            yield
        finally:
            for name, former in reversed(before.items()):
                client.config_set(name, former)


@contextmanager
def user(store: Store, *rules: str) -> Iterator[str]:
    """Yield the URL of a user with these ACL rules."""
    with store.server.client() as client:
        client.execute_command("ACL", "SETUSER", "few", "reset", "on", ">few", *rules)  # type: ignore[no-untyped-call]  # redis-py gives it no types
        try:
            host, port = store.server.address
            yield f"redis://few:few@{host}:{port}/0"
        finally:
            client.acl_deluser("few")


@through(*KINDS, programs=True)
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_server_without_persistence_is_warned_of(store: Store, protocol: int) -> None:
    options: dict[str, Any] = {} if store.is_managed else {"protocol": protocol}
    with settings(store.server, {}):
        checks = checks_of(store.provider(**options))
    assert statuses(checks) == {**ALL_WELL, "persistence": "warning"}
    assert checks["persistence"].message == "none: a restart loses all locks, so they are free"
    assert str(checks["persistence"].hint).startswith("set appendonly yes, with appendfsync everysec")


@through(*URL_KINDS, programs=True)
@pytest.mark.parametrize(
    ("values", "check", "status", "message"),
    [
        (
            {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"},
            "eviction",
            "warning",
            "allkeys-lru may evict",
        ),
        ({"maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"}, "eviction", "warning", "volatile-ttl may evict"),
        ({"maxmemory-policy": "allkeys-lru"}, "eviction", "ok", "no maxmemory: "),
        ({"maxmemory": "100mb"}, "eviction", "ok", "noeviction: "),
        ({"save": "3600 1"}, "persistence", "warning", "snapshots only: a crash loses the locks since"),
        ({"appendonly": "yes"}, "persistence", "ok", "append-only file, appendfsync always"),
        ({"appendonly": "yes", "appendfsync": "no"}, "persistence", "warning", "appendfsync no: "),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_settings_that_lose_locks_are_warned_of(
    store: Store, values: dict[str, str], check: str, status: str, message: str
) -> None:
    with settings(store.server, values):
        checks = checks_of(store.provider())
    assert checks[check].status == status
    assert checks[check].message.startswith(message)
    assert (checks[check].hint is None) is (status == "ok")


@through(*URL_KINDS, programs=True)
def test_a_service_that_forbids_config_is_no_warning(store: Store) -> None:
    with user(store, "+@all", "~*", "-config") as url:
        checks = checks_of(store.provider(url=url))
        assert statuses(checks) == {**ALL_WELL, "persistence": "warning"}
        assert checks["persistence"].message.startswith("no append-only file: ")
        with settings(store.server, {"appendonly": "yes"}):
            found = checks_of(store.provider(url=url))["persistence"]
        assert (found.status, found.message.partition(" not known: ")[0]) == ("ok", "append-only file; appendfsync")


@through(*URL_KINDS, programs=True)
def test_a_user_with_no_more_than_the_page_asks_for_is_well(store: Store) -> None:
    """The user for jobs in docs/providers/redis.md: doctor finds no fault, and says what it cannot check."""
    rules = "resetchannels -@all ~shedlock:* +evalsha +eval +time +hmget +hset +pexpire"
    with user(store, *rules.split()) as url:
        (found,) = checks_of(store.provider(url=url)).values()
        assert (found.check, found.status) == ("eviction, persistence, replication", "ok")
        assert found.message.startswith("not known: ")
        assert "'info'" in found.message or "can't run this command" in found.message
        assert "+info" in str(found.hint)
    with user(store, *rules.split(), "+scan") as url:  # records() needs it
        done = run("doctor", store=url)
    assert done.exit_code == 0
    assert "✓ eviction, persistence, replication: not known: " in done.stdout


def test_a_replica_is_warned_of_and_is_no_primary() -> None:
    with RedisPair() as pair:
        primary, replica = Store(pair.primary), Store(pair.follow().server)
        with primary.stack, replica.stack:
            found = checks_of(primary.provider())["replication"]
            assert (found.status, found.message) == (
                "warning",
                "1 replica, asynchronous: a failover may lose the latest locks",
            )
            (found,) = checks_of(replica.provider()).values()
            assert (found.check, found.status) == ("replication", "failed")
            done = run("doctor", "--json", store=replica.server.url())
    assert done.exit_code == 1
    checks = json.loads(done.stdout)["checks"]
    assert [(each["check"], each["status"]) for each in checks] == [
        ("reach the store", "ok"),
        ("replication", "failed"),
    ]
    assert checks[1]["hint"] == "the URL must lead to the primary"
