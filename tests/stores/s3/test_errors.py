"""Errors of S3 and of the network: which of them are outages, and their messages."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderError, ProviderUnreachable
from tests.faults.clocks import Clock
from tests.stores.clients import both_clients, both_clients_in_full
from tests.stores.s3.conftest import Open
from tests.support.aws import REGION
from tests.support.dates import DateProxy
from tests.support.front_end import Fault, FrontEnd
from tests.support.locks import acquired
from tests.support.s3 import S3Server

REQUEST = LockRequest("job", "1m")


def fault(code: str, status: int, marker: str = "") -> Fault:
    return Fault(status, f"<Error><Code>{code}</Code><Message>as it is</Message></Error>".encode(), marker)


@pytest.fixture
def warm(kind: str, prefix: str, shared_provider: Open, front_end: FrontEnd) -> LockProvider:
    """Return a provider with a free lock "job"."""
    provider = shared_provider(kind, front_end.address)
    provider.release(acquired(provider, "job"))
    return provider


def test_i5_a_conflict_that_does_not_end_is_an_error_and_no_skip(warm: LockProvider, front_end: FrontEnd) -> None:
    front_end.fault = fault("ConditionalRequestConflict", 409, "If-Match")
    with pytest.raises(ProviderError, match="changed again and again"):
        warm.acquire(REQUEST)
    assert len(front_end.requests) == 16
    front_end.fault = None
    acquired(warm, "job")


@both_clients
def test_i5_throttling_is_an_outage_and_is_not_made_worse(warm: LockProvider, front_end: FrontEnd) -> None:
    for code, status in (("SlowDown", 503), ("TooManyRequests", 429)):
        front_end.fault = fault(code, status, "If-Match")
        front_end.requests.clear()
        with pytest.raises(ProviderUnreachable, match=code):
            warm.acquire(REQUEST)
        assert len(front_end.requests) == 1, "neither sent again nor undone"
    front_end.fault = None
    acquired(warm, "job")


def test_i12_an_internal_error_is_in_doubt(warm: LockProvider, front_end: FrontEnd) -> None:
    front_end.fault = fault("InternalError", 500, "If-Match")
    with pytest.raises(ProviderUnreachable, match="InternalError"):
        warm.acquire(REQUEST)
    front_end.fault = None
    acquired(warm, "job")


REFUSALS = [
    ("AccessDenied", 403, "s3:ListBucket"),
    ("NoSuchBucket", 404, "create the bucket"),
    ("NotImplemented", 501, "two holders could have one lock"),
    ("AuthorizationHeaderMalformed", 400, "set region="),
    ("RequestTimeTooSkewed", 403, "correct the clock of this machine"),
    ("InvalidAccessKeyId", 403, "credentials"),
    ("ExpiredToken", 400, "credentials"),
]


def test_refusals_name_their_cure(open_provider: Open, front_end: FrontEnd) -> None:
    provider = open_provider(front_end.address)
    for code, status, cure in REFUSALS:
        front_end.fault = fault(code, status)
        with pytest.raises(ProviderError, match=code) as caught:
            provider.acquire(REQUEST)
        assert cure in str(caught.value.hint)


@both_clients_in_full
def test_a_bucket_that_is_not_there_is_a_refusal_and_is_not_made(open_url: Open, s3_server: S3Server) -> None:
    host, port = s3_server.address
    provider: Any = open_url(f"s3://nowhere?region={REGION}&endpoint=http://{host}:{port}")
    for operation in (provider.create_schema, lambda: provider.acquire(REQUEST)):
        with pytest.raises(ProviderError, match=r"there is no bucket 'nowhere'|NoSuchBucket") as caught:
            operation()
        assert "create the bucket" in str(caught.value.hint)
    with s3_server.client() as client:
        assert "nowhere" not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]


CLIENT = """
import sys
import time
from shedlock_py import LockRequest, ProviderError, provider_from_url
try:
    print(provider_from_url(sys.argv[1]).acquire(LockRequest("job", "1m")))
except ProviderError as error:
    print(type(error).__name__, error)
"""


def acquire_elsewhere(url: str, clock: Clock) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, url],
        env=os.environ | clock.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.slow("starts a process with another clock")
@pytest.mark.parametrize("hours", [1, -1])
def test_i5_a_clock_that_is_an_hour_off_is_refused(s3_server: S3Server, prefix: str, hours: int) -> None:
    """The signature of a request has its time. botocore does not correct the clock."""
    with Clock() as clock:
        clock.set(hours * 3600.0)
        told = acquire_elsewhere(s3_server.url(prefix=prefix), clock)
    assert told.startswith("ProviderError"), told
    assert "RequestTimeTooSkewed" in told
    assert "correct the clock of this machine" in told


@pytest.mark.slow("starts two processes with another clock")
def test_i10_a_clock_that_is_ten_minutes_off_decides_nothing(s3_server: S3Server, prefix: str) -> None:
    with Clock() as clock:
        clock.set(600.0)
        assert "fencing token" in acquire_elsewhere(s3_server.url(prefix=prefix), clock)
        assert acquire_elsewhere(s3_server.url(prefix=prefix), clock) == "None\n"


def test_a_wrong_key_is_a_refusal_that_does_not_show_it(
    s3_server: S3Server, open_provider: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wr0ng-pw")
    with pytest.raises(ProviderError, match="SignatureDoesNotMatch") as caught:
        open_provider().acquire(REQUEST)
    told = f"{caught.value} {caught.value.hint}"
    assert "check the secret access key" in told
    assert "wr0ng-pw" not in told


@both_clients_in_full
def test_i5_a_record_that_is_cut_off_on_its_way_is_an_outage(warm: LockProvider, front_end: FrontEnd) -> None:
    front_end.cuts_off = True
    with pytest.raises(ProviderUnreachable):
        warm.acquire(REQUEST)
    front_end.cuts_off = False
    acquired(warm, "job")


@both_clients_in_full
def test_i5_a_reply_without_a_date_is_an_outage(warm: LockProvider, front_end: FrontEnd) -> None:
    front_end.fault = Fault(404, b"<Error><Code>NoSuchKey</Code></Error>", has_date=False)
    with pytest.raises(ProviderUnreachable, match="no Date header"):
        warm.acquire(LockRequest("another", "1m"))


@pytest.mark.parametrize(
    "offset", [1.0, pytest.param(-1.0, marks=pytest.mark.slow("the clock that is behind only keeps the lease longer"))]
)
def test_i1_front_ends_that_differ_by_the_allowed_error(
    open_provider: Open, s3_server: S3Server, offset: float
) -> None:
    """Neither front end gives away a lease while its holder trusts it."""
    with DateProxy(s3_server.address, offset) as front:
        holder, other = open_provider(clock_error="1s"), open_provider(front.address, clock_error="1s")
        lease, successor = acquired(holder, "job", "300ms"), None
        while successor is None:
            was_trusted = lease.is_trusted()
            successor = other.acquire(REQUEST)
            assert successor is None or not was_trusted
            time.sleep(0.05)  # between two attempts
        assert other.release(successor)


def test_front_ends_that_differ_by_more_overlap_and_tokens_tell(open_provider: Open, s3_server: S3Server) -> None:
    """Here exclusion is not promised. The store gives the lease away early; nothing else goes wrong."""
    with DateProxy(s3_server.address, 120.0) as front:
        holder, other = open_provider(clock_error="1s"), open_provider(front.address, clock_error="1s")
        lease, successor = acquired(holder, "job"), acquired(other, "job")
        assert lease.is_trusted()
        assert successor.fencing_token > lease.fencing_token  # type: ignore[operator]  # this store keeps them
        assert holder.extend(lease, "1m") is None
        assert other.extend(successor, "2m") is successor
