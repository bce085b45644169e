"""Each contender takes a free lock, gives it back, and is refused one that somebody has: or its times mean nothing."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.plan import Plan
from benchmarks.servers import STORES, RunningStore, Site
from benchmarks.subject import Subject

pytestmark = [
    # Drivers' notes about tables that are there already, and what peers leave open: not ours to mend.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.parametrize("running_store", STORES, indirect=True, scope="module"),
]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def test_floors_and_ours(running_store: RunningStore, runner: asyncio.Runner) -> None:
    for contender in CONTENDERS:
        if contender.store == running_store.site.store and contender.kind != "peer":
            check(contender, running_store.site, runner)


def test_peers_that_are_installed(running_store: RunningStore, runner: asyncio.Runner) -> None:
    missing = []
    for contender in CONTENDERS:
        if contender.store == running_store.site.store and contender.kind == "peer":
            try:
                check(contender, running_store.site, runner)
            except ImportError as error:
                missing.append(f"{contender.name}: {error}")
    if missing:
        pytest.skip("; ".join(missing))


def check(contender: Contender, site: Site, runner: asyncio.Runner) -> None:
    with ExitStack() as stack:
        first, second = (Subject(contender, site, runner) for _ in range(2))
        stack.callback(second.close)
        stack.callback(first.close)
        free, held = f"free-{contender.slug}", f"held-{contender.slug}"
        assert len(first.cycles([free] * 3)) == 3, contender
        assert len(second.cycles([free] * 2)) == 2, contender  # it was given back
        first.keep(held)
        assert len(second.refusals(held, 2)) == 2, contender


def test_a_refusal_that_is_a_grant_is_an_error(running_store: RunningStore, runner: asyncio.Runner) -> None:
    floor = next(one for one in CONTENDERS if one.store == running_store.site.store and one.kind == "floor")
    subject = Subject(floor, running_store.site, runner)
    with pytest.raises(RuntimeError, match="was granted although somebody has it"):
        subject.refusals("nobody-has-it", 1)
    subject.close()


def test_the_servers_wait_for_the_disk(running_store: RunningStore) -> None:
    site = running_store.site
    match site.store:
        case "postgres":
            import psycopg

            with psycopg.connect(site.url("postgresql")) as connection:
                shown = [connection.execute(f"SHOW {name}").fetchone() for name in ("fsync", "synchronous_commit")]
            assert shown == [("on",), ("on",)]
        case "mariadb":
            import pymysql

            with pymysql.connect(**site.arguments) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT @@innodb_flush_log_at_trx_commit")
                assert cursor.fetchone() == (1,)
        case "sqlite":
            import sqlite3

            with closing(sqlite3.connect(site.path)) as lite:
                assert lite.execute("PRAGMA synchronous").fetchone() == (2,)
        case "redis":
            import redis

            with redis.Redis.from_url(site.url()) as client:
                assert client.config_get("save", "appendonly") == {
                    "save": "3600 1 300 100 60 10000",
                    "appendonly": "no",
                }


def test_whoever_is_missing_is_reported(running_store: RunningStore) -> None:
    def refuse(site: Site) -> None:
        raise ModuleNotFoundError("No module named 'nothing'")

    plan = Plan.smoke()
    contender = Contender(running_store.site.store, "nothing", "peer", refuse)  # type: ignore[arg-type]
    assert not plan.opened(contender, "latency", lambda: contender.open(running_store.site))
    assert [(one.name, one.reason) for one in plan.absent] == [
        ("nothing", "ModuleNotFoundError: No module named 'nothing'")
    ]
