"""I1: the provider detects a server that ignores the conditions of requests, and grants no lock on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from shedlock_py import LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.testing.blocking import BlockingLockProvider
from tests.cli.harness import run
from tests.stores.s3.conftest import Open
from tests.support.front_end import FrontEnd
from tests.support.locks import acquired
from tests.support.s3 import S3Server

REQUEST = LockRequest("job", "1m")


def check_conditions(provider: Any) -> None:
    if isinstance(provider, BlockingLockProvider):
        provider.run(provider.async_provider.check_conditions())  # type: ignore[attr-defined]  # of this provider only
    else:
        provider.check_conditions()


OPERATIONS: dict[str, Callable[[Any], object]] = {
    "create_schema": lambda provider: provider.create_schema(),
    "check_conditions": check_conditions,
    "acquire": lambda provider: provider.acquire(REQUEST),
    "take_over": lambda provider: provider.take_over(REQUEST),
}


ANOTHER_CASE = pytest.mark.slow("another case of the same rule")


@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
@pytest.mark.parametrize(
    "operation",
    [pytest.param(name, marks=[] if name == "acquire" else ANOTHER_CASE) for name in OPERATIONS],
)
def test_i1_a_server_that_ignores_a_condition_is_refused(
    open_provider: Open, front_end: FrontEnd, s3_server: S3Server, prefix: str, header: str, operation: str
) -> None:
    provider: Any = open_provider(front_end.address)
    front_end.ignored = {("PUT", header)}
    for _ in range(2):  # the second time, too
        with pytest.raises(ProviderError, match=f"the server ignores {header} in PUT") as caught:
            OPERATIONS[operation](provider)
        assert not isinstance(caught.value, ProviderUnreachable)
        assert "two holders could have one lock" in str(caught.value.hint)
    assert s3_server.keys(prefix) == [], "neither a record nor what was tried"
    front_end.ignored = set()
    acquired(provider, "job")


def test_a_server_that_deletes_whatever_the_condition_prunes_nothing(
    open_provider: Open, front_end: FrontEnd, s3_server: S3Server, prefix: str
) -> None:
    provider = open_provider(front_end.address)
    provider.create_schema()
    assert provider.release(acquired(provider, "job"))
    front_end.ignored = {("DELETE", "If-Match")}
    with pytest.raises(ProviderError, match="the server ignores If-Match in DELETE") as caught:
        provider.prune(0)
    assert "lifecycle rule" in str(caught.value.hint)
    assert s3_server.keys(prefix) == [f"{prefix}/job.json"]
    assert provider.release(acquired(provider, "job")), "locks do not need it"


def test_the_server_is_tried_before_the_first_record_and_not_again(open_provider: Open, front_end: FrontEnd) -> None:
    """A process that only finds records does not try: an earlier check preceded these records."""
    provider = open_provider(front_end.address)
    assert provider.release(acquired(provider, "job"))
    front_end.ignored = {("PUT", "If-None-Match")}
    acquired(provider, "another")
    other = open_provider(front_end.address)
    assert other.release(acquired(other, "job"))
    with pytest.raises(ProviderError, match="ignores"):
        other.acquire(LockRequest("a third", "1m"))


def test_a_check_that_was_cut_off_leaves_nothing_that_counts(
    open_provider: Open, s3_server: S3Server, prefix: str
) -> None:
    with s3_server.client() as client:
        client.put_object(Bucket=s3_server.bucket, Key=f"{prefix}/check-0123", Body=b"{}")
    assert open_provider().records() == []


@pytest.mark.slow("opens clients of S3 again and again")
def test_doctor_fails_where_the_server_ignores_conditions(
    s3_server: S3Server, front_end: FrontEnd, prefix: str
) -> None:
    def check() -> tuple[int, dict[str, str]]:
        done = run("doctor", "--json", store=f"{s3_server.url(via=front_end.address, prefix=prefix)}&clock_error=0s")
        return done.exit_code, {found["check"]: found["status"] for found in json.loads(done.stdout)["checks"]}

    code, checks = check()
    assert (code, set(checks.values())) == (0, {"ok"})
    assert "conditions" in checks
    front_end.ignored = {("PUT", "If-Match")}
    assert check() == (1, {"reach the store": "ok", "conditions": "failed"}), "also where its record is there already"
