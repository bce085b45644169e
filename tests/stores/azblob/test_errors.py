"""Errors of Azure and of the network: which of them are outages, and their messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderError, ProviderUnreachable
from tests.stores.azblob.conftest import Open
from tests.stores.clients import both_clients_in_full
from tests.support.azblob import CONTAINER, AzuriteServer, blob_url
from tests.support.front_end import Fault, FrontEnd
from tests.support.locks import acquired
from tests.support.ports import LOOPBACK, free_port

REQUEST = LockRequest("job", "1m")


def fault(code: str, status: int, marker: str = "", *, has_date: bool = True) -> Fault:
    body = f"<Error><Code>{code}</Code><Message>as it is\nRequestId:1</Message></Error>".encode()
    return Fault(status, body, marker, has_date, content_type="application/xml")


@pytest.fixture
def warm(open_provider: Open, front_end: FrontEnd) -> LockProvider:
    """Return a provider with a free lock "job"."""
    provider = open_provider(front_end.address)
    provider.release(acquired(provider, "job"))
    return provider


@both_clients_in_full
def test_i12_an_error_of_the_server_is_an_outage_and_the_sdk_sends_nothing_again(
    warm: LockProvider, front_end: FrontEnd
) -> None:
    for code, status in (("ServerBusy", 503), ("OperationTimedOut", 500), ("TooManyRequests", 429)):
        front_end.fault = fault(code, status, "If-Match")
        front_end.requests.clear()
        with pytest.raises(ProviderUnreachable, match=f"{code}: as it is$"):
            warm.acquire(REQUEST)
        assert len(front_end.requests) == 1
    front_end.fault = None
    acquired(warm, "job")


REFUSALS = [
    ("AuthenticationFailed", 403, "the clock of this machine"),
    ("AuthorizationPermissionMismatch", 403, "Storage Blob Data Contributor"),
    ("AuthorizationFailure", 403, "network rules"),
    ("LeaseIdMissing", 412, None),
]


@both_clients_in_full
def test_refusals_name_their_cure(warm: LockProvider, front_end: FrontEnd) -> None:
    for code, status, cure in REFUSALS:
        front_end.fault = fault(code, status)
        with pytest.raises(ProviderError, match=code) as caught:
            warm.acquire(REQUEST)
        assert not isinstance(caught.value, ProviderUnreachable)
        assert (cure or "None") in str(caught.value.hint)


@both_clients_in_full
def test_a_container_that_is_not_there_is_a_refusal_and_is_not_made(
    open_url: Open, azblob_server: AzuriteServer
) -> None:
    provider = open_url(azblob_server.url().replace(f"/{CONTAINER}/", "/nowhere/"))
    operations: tuple[Callable[[], object], ...] = (provider.create_schema, lambda: provider.acquire(REQUEST))
    for operation in operations:
        with pytest.raises(ProviderError, match="ContainerNotFound") as caught:
            operation()
        assert "create the container" in str(caught.value.hint)


@both_clients_in_full
def test_i5_a_reply_without_a_date_and_a_record_that_is_cut_off_are_outages(
    warm: LockProvider, front_end: FrontEnd
) -> None:
    front_end.fault = fault("BlobNotFound", 404, has_date=False)
    with pytest.raises(ProviderUnreachable, match="no Date header"):
        warm.acquire(LockRequest("another", "1m"))
    front_end.fault, front_end.cuts_off = None, True
    with pytest.raises(ProviderUnreachable):
        warm.acquire(REQUEST)
    front_end.cuts_off = False
    acquired(warm, "job")


@both_clients_in_full
def test_i5_a_server_that_is_away_is_an_outage_at_once(open_url: Open) -> None:
    """Before the time limit, and without an undo: nothing was sent."""
    with pytest.raises(ProviderUnreachable, match=r"(?i)connect") as caught:
        open_url(blob_url((LOOPBACK, free_port())), timeout="10m").acquire(REQUEST)
    assert "time limit" not in str(caught.value)
