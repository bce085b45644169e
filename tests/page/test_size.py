"""5,000 names with 50 runs each: the reads, and the size of the page. Times: docs/reference/page.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shedlock_py import provider_from_url
from shedlock_py.page import page_app
from shedlock_py.page.jobs import MOST_WITH_RUNS
from shedlock_py.page.report import report
from tests.page.client import Client
from tests.page.filling import fill_redis, fill_sqlite, name_of
from tests.support.redis import RedisEndpoint

SIZES = pytest.mark.parametrize(
    ("names", "runs"), [(600, 12), pytest.param(5000, 50, marks=pytest.mark.matrix("as large as the page says"))]
)


class Counting:
    def __init__(self, provider: Any) -> None:
        self.provider = provider
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.provider, name)

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            return found(*arguments)

        return call if callable(found) and name in ("record", "records", "runs", "recent_runs") else found


def check(provider: Any, names: int) -> None:
    counting = Counting(provider)
    client = Client(page_app(counting))
    of_the_list = ["records", *["recent_runs"] * (names // 200 if names <= MOST_WITH_RUNS else 1)]
    for path, calls in (
        ("/", of_the_list),
        ("/?page=6&sort=-since", of_the_list),
        ("/?q=tenant-0012", ["records", "recent_runs"]),
        (f"/job?name={name_of(7)}", ["record", "runs"]),
    ):
        counting.calls.clear()
        reply = client.get(path)
        assert reply.status_code == 200
        assert len(reply.content) <= 200_000
        assert counting.calls == calls, path
    counting.calls.clear()
    html = client.html("/?show=failed")  # for all jobs: 200 names in each request
    assert counting.calls == ["records", *["recent_runs"] * (names // 200)]
    assert f"of {names // 10}" in html or f"{names // 10} of {names} locks" in html
    provider.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Any:
    provider: Any = provider_from_url(f"sqlite:///{tmp_path}/locks.db?history=50&timeout=60s")
    provider.create_schema()
    return provider


@SIZES
def test_many_names_on_sqlite(sqlite: Any, tmp_path: Path, names: int, runs: int) -> None:
    fill_sqlite(tmp_path / "locks.db", names, runs)
    check(sqlite, names)


def redis_of(server: RedisEndpoint) -> Any:
    url = server.url()
    return provider_from_url(f"{url}{'&' if '?' in url else '?'}history=50&timeout=60s")


@pytest.fixture
def empty_redis(redis_server: RedisEndpoint) -> Iterator[RedisEndpoint]:
    with redis_server.client() as client:
        client.flushdb()
        yield redis_server
        client.flushdb()


@SIZES
def test_many_names_on_redis(empty_redis: RedisEndpoint, names: int, runs: int) -> None:
    fill_redis(empty_redis.url(), names, runs)
    check(redis_of(empty_redis), names)


def test_what_was_filled_in_is_what_the_stores_write(sqlite: Any, tmp_path: Path, empty_redis: RedisEndpoint) -> None:
    fill_sqlite(tmp_path / "locks.db", 3, 7)
    fill_redis(empty_redis.url(), 3, 7)
    for provider in (sqlite, redis_of(empty_redis)):
        assert [record.name for record in provider.records()] == [name_of(number) for number in range(3)]
        runs = provider.runs(name_of(1))
        assert (len(runs), runs[0].duration.total_seconds(), runs[0].outcome) == (7, 42, "ok")
        assert "3 locks" in report(provider)
        provider.close()
