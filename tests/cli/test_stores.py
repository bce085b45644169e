"""All commands except run and watch, once on each kind of server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import LockProvider, provider_from_url
from shedlock_py.providers.redis import RedisQuorumLockProvider
from tests.cli.harness import run, take
from tests.support.polling import wait_until
from tests.support.stores import STORES, WITH_NETWORK, Store

DATABASE = "tests_cli"
CPU = pytest.mark.slow("its client costs a CPU-second")
LOOP = pytest.mark.slow("an event loop for each command; test_async_stores.py has a sample")
DRIVERS = [
    ("postgres", "postgresql+psycopg"),
    ("mysql", "mysql+pymysql"),
    pytest.param(("mariadb", "mariadb+pymysql"), marks=pytest.mark.slow("the same driver on MySQL shows it")),
    pytest.param(("postgres", "postgresql+asyncpg"), marks=LOOP),
    pytest.param(("mysql", "mysql+asyncmy"), marks=LOOP),
    *(
        pytest.param((name, ""), marks=[] if name in ("redis", "quorum", "mongodb") else CPU)
        for name in WITH_NETWORK
        if not STORES[name].facts.is_sql
    ),
]


class KeptOpen:
    """A provider that a command does not close. A new client of S3 or DynamoDB would cost 0.2 CPU-seconds."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def close(self) -> None: ...


@pytest.fixture(params=DRIVERS, ids=lambda param: "-".join(filter(None, param)))
def store(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The name of a store, and its driver if there are several."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def url(store: tuple[str, str], request: pytest.FixtureRequest, make_store: Callable[..., Store]) -> Iterator[str]:
    name, driver = store
    if driver:
        server = request.getfixturevalue(STORES[name].fixture)
        with server.new_database(DATABASE):
            yield server.url(driver, DATABASE)
    elif name == "quorum":
        servers = [server.address for server in request.getfixturevalue("redis_nodes")[:3]]
        places = ",".join(f"{host}:{port}" for host, port in servers)
        url = f"redis+quorum://{places}?longest_lease=15m"
        quorum = RedisQuorumLockProvider(url)
        quorum.start_new_quorum()
        quorum.close()
        yield url
    else:
        yield make_store(name).where()


@pytest.fixture
def provider(url: str) -> Iterator[LockProvider]:
    """Open a sync provider, even if the command line has the URL of an async driver."""
    provider: Any = provider_from_url(re.sub(r"\+(asyncpg|asyncmy)", "", url))
    yield provider
    provider.close()


@pytest.mark.not_quick("starts the server of its parameter")
def test_the_commands_on_each_store(
    store: tuple[str, str], url: str, provider: LockProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"job_{uuid4().hex[:8]}"
    monkeypatch.setitem(globals(), prefix, KeptOpen(provider))
    reference = url if "async" in url.partition("://")[0] else f"{__name__}:{prefix}"
    name, other = f"{prefix}-größe", f"{prefix}-other"

    def ok(*arguments: str, code: int = 0) -> str:
        done = run(*arguments, store=url if arguments[0] == "list" else reference)
        assert done.exit_code == code, done.output
        assert "s3cret-pw" not in done.output
        return done.stdout

    ok("schema")
    ok("schema", "--create")
    checked = json.loads(ok("doctor", "--json"))
    found = {check["check"]: check["status"] for check in checked["checks"]}
    assert [check["message"] for check in checked["checks"] if check["check"] == "schema"] == ["complete"]
    own = [*STORES[store[0]].checks, *(["prepared statements"] if "+psycopg:" in url else [])]
    assert list(found)[: len(own) + 2] == ["reach the store", *own, "schema"]
    assert len(found) == 9 + len(own)
    assert {check for check, status in found.items() if status != "ok"} <= {"durability", "persistence"}, checked
    assert ok("list", prefix) == ""
    lease = take(provider, name, holder="web-1:7")
    provider.release(take(provider, other))
    listed = ok("list", prefix).splitlines()
    assert [line.split()[:2] for line in listed[1:]] == [[name, "held"], [other, "free"]]
    shown = json.loads(ok("show", name, "--json"))
    assert (shown["holder"], shown["claim_id"]) == ("web-1:7", lease.claim_id)
    assert shown["fencing_token"] == lease.fencing_token
    assert "claim id" in ok("show", name)
    ok("show", f"{prefix}-none", code=1)
    assert ok("leader", name).startswith("web-1:7 leads in ")
    assert ok("demote", name).startswith("web-1:7 is demoted: ")
    assert provider.extend(lease, "1m") is None
    ok("leader", name, code=1)
    ok("release", name, code=64)
    ok("release", name, "--force")
    ok("release", name, "--force", code=1)
    dry = json.loads(ok("prune", "--unused-for", "0s", "--dry-run", "--json"))
    assert {name, other} <= set(dry["names"])
    deleted: list[int] = []

    def are_pruned() -> bool:
        deleted.append(json.loads(ok("prune", "--unused-for", "0s", "--json"))["deleted"])
        return sum(deleted) >= len(dry["names"])

    wait_until(are_pruned, what="pruned")  # later only if the store's clock is coarse, as etcd's is
    assert ok("list", prefix) == ""
