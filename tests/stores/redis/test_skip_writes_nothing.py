"""Skips are the most frequent operation: a skip changes and replicates nothing, also in the append-only file."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import redis

from shedlock_py import LockRequest
from tests.stores.redis.stores import URL_KINDS, Store, through
from tests.support.availability import private_server
from tests.support.locks import acquired
from tests.support.polling import wait_until
from tests.support.redis import RedisServer

SKIPS = 20
DAY_MS = 86_400_000
FIRE_TIME = datetime(2026, 7, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def quiet() -> Iterator[RedisServer]:
    """A master with a file and a replica. The master sends nothing on its own."""
    quietly = {"repl-ping-replica-period": "3600"}
    with private_server("redis", lambda: RedisServer(appendonly=True, config=quietly)) as master:
        host, port = master.address
        with (
            private_server("redis", lambda: RedisServer(config={"replicaof": f"{host} {port}"})),
            master.client() as client,
        ):
            wait_until(lambda: client.info("replication").get("slave0", {}).get("state") == "online", what="a replica")
            yield master


def traces(client: redis.Redis) -> tuple[int, ...]:
    """Return the changes since the last snapshot, the file's size, and the bytes sent to replicas."""
    persistence, replication = client.info("persistence"), client.info("replication")
    return (
        persistence["rdb_changes_since_last_save"],
        persistence["aof_current_size"],
        replication["master_repl_offset"],
    )


@pytest.mark.parametrize("history", [0, 50])
@pytest.mark.parametrize("why", ["held", "already ran"])
@through(*URL_KINDS, programs=True)
def test_a_skip_writes_nothing(kind: str, why: str, history: int, quiet: RedisServer, name: str) -> None:
    store = Store(quiet, kind)
    with store.stack, quiet.client() as client:
        provider = store.provider(history=history)
        request = LockRequest(name, "1m", fire_time=FIRE_TIME if why == "already ran" else None)
        lease = acquired(provider, name, fire_time=request.fire_time)
        if why == "already ran":
            assert provider.release(lease)
        assert provider.acquire(request) is None
        client.pexpire(f"shedlock:{{{name}}}", DAY_MS)
        record, before = client.hgetall(f"shedlock:{{{name}}}"), traces(client)
        for _ in range(SKIPS):
            assert provider.acquire(request) is None
        assert (client.hgetall(f"shedlock:{{{name}}}"), traces(client)) == (record, before)
        assert client.pttl(f"shedlock:{{{name}}}") <= DAY_MS, "a skip leaves the expiry"
        provider.take_over(request)
        assert all(now > then for now, then in zip(traces(client), before, strict=True)), "this would have been seen"
