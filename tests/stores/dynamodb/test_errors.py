"""Errors of DynamoDB and of the network: which of them are outages, and their messages."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.client import BaseClient

from shedlock_py import LockProvider, LockRequest, ProviderError, ProviderUnreachable, provider_from_url
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.clients import both_clients, both_clients_in_full
from tests.stores.dynamodb.conftest import Open
from tests.support.dynamodb import REGION, DynamoDBServer
from tests.support.front_end import Fault, FrontEnd
from tests.support.held_replies import HeldReply
from tests.support.locks import acquired, record_of
from tests.support.logs import warnings_of
from tests.support.polling import wait_until
from tests.support.ports import free_port

UPDATE = "UpdateItem"


def fault(code: str, message: str = "as it is", status: int = 400, marker: str = UPDATE) -> Fault:
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message}
    return Fault(status, json.dumps(body).encode(), marker)


@pytest.fixture
def warm(kind: str, shared_provider: Open, front_end: FrontEnd) -> LockProvider:
    """Return a provider that knows the time, so that an acquire is one request."""
    provider = shared_provider(kind, front_end.address)
    assert provider.record("warm") is None
    return provider


@both_clients
def test_i5_throttling_is_an_outage_and_is_not_made_worse(warm: LockProvider, front_end: FrontEnd, name: str) -> None:
    for code in ("ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"):
        front_end.fault = fault(code)
        front_end.requests.clear()
        with pytest.raises(ProviderUnreachable, match=code) as caught:
            warm.acquire(LockRequest(name, "1m"))
        assert "limit" in (caught.value.hint or "")
        assert len(front_end.requests) == 1, "neither sent again nor undone"
    front_end.fault = None
    acquired(warm, name)


@both_clients_in_full
def test_i12_an_internal_error_is_in_doubt_and_undone(warm: LockProvider, front_end: FrontEnd, name: str) -> None:
    front_end.fault = fault("InternalServerError", status=500)
    with pytest.raises(ProviderUnreachable, match="InternalServerError"):
        warm.acquire(LockRequest(name, "1m"))
    assert len(front_end.requests) == 2
    assert "releasedBy" in front_end.requests[1]


def test_a_conflict_with_a_transaction_is_tried_again(warm: LockProvider, front_end: FrontEnd, name: str) -> None:
    front_end.fault = fault("TransactionConflictException")
    with pytest.raises(ProviderUnreachable, match="TransactionConflict"):
        warm.acquire(LockRequest(name, "1m"))
    assert len(front_end.requests) > 2


REFUSALS = [
    ("AccessDeniedException", "User: x is not authorized to perform: dynamodb:UpdateItem", "policy"),
    ("UnrecognizedClientException", "The security token included in the request is invalid.", "credentials"),
    ("ExpiredTokenException", "The security token included in the request is expired", "credentials"),
    (
        "InvalidSignatureException",
        "Signature expired: 20261123T170000Z is now earlier than 20261123T175500Z (20261123T180000Z - 5 min.)",
        "correct the clock of this machine",
    ),
]


def test_refusals_name_their_cure(warm: LockProvider, front_end: FrontEnd, name: str) -> None:
    for code, message, cure in REFUSALS:
        front_end.fault = fault(code, message)
        front_end.requests.clear()
        with pytest.raises(ProviderError, match=code) as caught:
            warm.acquire(LockRequest(name, "1m"))
        assert not isinstance(caught.value, ProviderUnreachable)
        assert cure in (caught.value.hint or "")
        assert len(front_end.requests) == 1


@both_clients_in_full
def test_i5_a_reply_without_the_time_is_an_outage(warm: LockProvider, front_end: FrontEnd, name: str) -> None:
    front_end.fault = Fault(200, b"", marker="nothing has this", has_date=False)
    with pytest.raises(ProviderUnreachable, match="Date") as caught:
        warm.acquire(LockRequest(name, "1m"))
    assert "proxy" in (caught.value.hint or "")


@both_clients_in_full
def test_i5_a_page_of_a_proxy_is_an_outage(warm: LockProvider, front_end: FrontEnd, name: str) -> None:
    front_end.fault = Fault(502, b"<html>Bad gateway</html>")
    with pytest.raises(ProviderUnreachable):
        warm.acquire(LockRequest(name, "1m"))


@both_clients
def test_i5_a_success_that_is_not_of_dynamodb_grants_nothing(
    warm: LockProvider, front_end: FrontEnd, name: str
) -> None:
    """A proxy's sign-in page does this. botocore takes each 200 for a success."""
    for body, content_type in ((b"<html>Sign in</html>", "text/html"), (b"{}", "application/json")):
        lock = f"{name}-{content_type}"
        lease = acquired(warm, lock)
        front_end.fault = Fault(200, body, content_type=content_type)
        operations: list[Callable[[], object]] = [
            partial(warm.acquire, LockRequest("other", "1m")),
            partial(warm.extend, lease, "1m"),
            partial(warm.record, lock),
            warm.records,
            partial(warm.release, lease),
        ]
        for operation in operations:
            with pytest.raises(ProviderUnreachable, match="not DynamoDB's") as caught:
                operation()
            assert "proxy" in (caught.value.hint or "")
        front_end.fault = None
        assert record_of(warm, lock).is_held


def test_i5_a_success_that_is_not_of_dynamodb_deletes_nothing(
    open_provider: Open, front_end: FrontEnd, name: str
) -> None:
    provider = open_provider(front_end.address)
    provider.release(acquired(provider, name))
    front_end.fault = Fault(200, b"<html>Sign in</html>", "DeleteItem", content_type="text/html")

    with pytest.raises(ProviderUnreachable, match="not DynamoDB's"):
        wait_until(lambda: provider.prune(0), what="the record is older than the clock is exact")
    front_end.fault = None
    assert record_of(provider, name).name == name


def test_a_missing_table_names_the_cure(dynamodb_server: DynamoDBServer) -> None:
    provider: Any = provider_from_url(dynamodb_server.url("no_such_table"))
    arguments: dict[str, Any] = {"acquire": LockRequest("job", "1m"), "record": "job", "records": "", "prune": "1d"}
    for operation, argument in arguments.items():
        with pytest.raises(ProviderError, match="ResourceNotFoundException") as caught:
            getattr(provider, operation)(argument)
        assert "create_schema()" in (caught.value.hint or "")
        assert "no_such_table" in (caught.value.hint or "")
    provider.close()


def test_missing_credentials_are_a_refusal_that_says_where_to_put_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    provider: Any = provider_from_url(f"dynamodb://locks?region={REGION}&endpoint=http://127.0.0.1:{free_port()}")
    with pytest.raises(ProviderError, match="credentials") as caught:
        provider.acquire(LockRequest("job", "1m"))
    assert not isinstance(caught.value, ProviderUnreachable)
    assert "AWS_ACCESS_KEY_ID" in (caught.value.hint or "")
    provider.close()


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], object]:
    """Write an access key into boto3's credentials file, which does not exist before."""
    file = tmp_path / "credentials"
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    return lambda key: file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=pw\n")


@both_clients_in_full
def test_credentials_that_appear_later_are_read(
    open_provider: Open, credentials: Callable[[str], object], name: str
) -> None:
    """Credentials of a role, or of an agent that writes a file, may come after the process has started."""
    provider = open_provider()
    for _ in range(3):  # the provider replaces its client each time
        with pytest.raises(ProviderError, match="Unable to locate credentials"):
            provider.acquire(LockRequest(name, "1m"))
    credentials("first")
    acquired(provider, name)


@pytest.fixture
def no_debug() -> Iterator[None]:
    """Turn off DEBUG logs: pytest keeps each record, and boto3's DEBUG records keep their client."""
    logging.disable(logging.DEBUG)
    yield
    logging.disable(logging.NOTSET)


@both_clients_in_full
@pytest.mark.usefixtures("no_debug")
def test_clients_without_credentials_do_not_pile_up(
    open_provider: Open, credentials: Callable[[str], object], name: str
) -> None:
    """Without credentials, each attempt makes a client, which takes megabytes."""
    provider = open_provider()
    before = number_of_clients()
    for _ in range(6):
        with pytest.raises(ProviderError, match="Unable to locate credentials"):
            provider.acquire(LockRequest(name, "1m"))
    assert number_of_clients() - before <= 3


def number_of_clients() -> int:
    gc.collect()
    return sum(issubclass(type(found), BaseClient) for found in gc.get_objects())  # isinstance() follows weak proxies


@both_clients_in_full
def test_credentials_that_are_replaced_are_read_again(
    open_provider: Open, credentials: Callable[[str], object], front_end: FrontEnd, name: str
) -> None:
    credentials("first")
    provider = open_provider(front_end.address)
    lease = acquired(provider, name)
    front_end.fault = fault("ExpiredTokenException", marker="Credential=first/")
    credentials("second")
    with pytest.raises(ProviderError, match="ExpiredTokenException"):
        provider.extend(lease, "2m")
    assert provider.release(lease) is True
    assert len(front_end.requests) == 1


@both_clients_in_full
def test_credentials_that_are_replaced_disturb_no_request_that_is_under_way(
    open_provider: Open, credentials: Callable[[str], object], front_end: FrontEnd, name: str
) -> None:
    credentials("first")
    held = HeldReply()
    with TcpProxy(front_end.address, rewrite=held) as proxy, ThreadPoolExecutor(1) as other:
        provider = open_provider(proxy.address, timeout="20s")
        lease = acquired(provider, name)
        proxy.reset()
        held.hold_next()
        extending = other.submit(provider.extend, lease, "2m")
        assert held.has_come.wait(20)
        front_end.fault = fault("ExpiredTokenException", marker="Credential=first/")
        credentials("second")
        with pytest.raises(ProviderError, match="ExpiredTokenException"):
            provider.record(name)
        assert record_of(provider, name).is_held  # by another client
        held.let_go()
        assert extending.result() is lease
        assert proxy.round_trips == 3, "the extension was sent once"


@both_clients_in_full
def test_credentials_that_are_refused_twice_are_replaced_once(
    open_provider: Open, credentials: Callable[[str], object], front_end: FrontEnd, name: str
) -> None:
    """The second request with the old credentials fails although new credentials exist."""
    credentials("first")
    held = HeldReply()
    with TcpProxy(front_end.address, rewrite=held) as proxy, ThreadPoolExecutor(1) as other:
        provider = open_provider(proxy.address, timeout="20s")
        assert provider.record(name) is None
        front_end.fault = fault("ExpiredTokenException", marker="Credential=first/")
        credentials("second")
        held.hold_next()
        late = other.submit(provider.record, name)
        assert held.has_come.wait(20)
        with pytest.raises(ProviderError, match="ExpiredTokenException"):
            provider.record(name)
        assert provider.record(name) is None
        held.let_go()
        with pytest.raises(ProviderError, match="ExpiredTokenException"):
            late.result()
        proxy.reset()
        assert provider.record(name) is None
        assert proxy.connections == 0, "the new client keeps its credentials"


def test_a_profile_that_is_missing_is_named() -> None:
    provider: Any = provider_from_url(f"dynamodb://locks?region={REGION}&profile=nobody-has-it")
    with pytest.raises(ProviderError, match="nobody-has-it") as caught:
        provider.acquire(LockRequest("job", "1m"))
    assert "config" in (caught.value.hint or "")
    provider.close()


ODD: list[dict[str, Any]] = [
    {"lockUntil": "tomorrow", "lockedAt": "2024-01-01T00:00:00.000Z", "lockedBy": "x"},
    {"lockUntil": 12, "lockedAt": "2024-01-01T00:00:00.000Z", "lockedBy": "x"},
    {"lockUntil": "9999-01-01T00:00:00.000Z"},
]


def test_i5_an_item_with_odd_values_is_refused_and_hides_no_other(
    provider: LockProvider,
    dynamodb_server: DynamoDBServer,
    table: str,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    acquired(provider, f"{name}-good")
    for values in ODD:
        caplog.clear()
        dynamodb_server.put(table, _id=name, **values)
        for _ in range(2):
            with pytest.raises(ProviderError, match="not a lock record"):
                provider.acquire(LockRequest(name, "1m"))
        assert [record.name for record in provider.records(name)] == [f"{name}-good"]
        assert warnings_of(caplog, f"{{'S': '{name}'}}")
        provider.prune("1h")
        assert record_of(provider, f"{name}-good").is_held


@pytest.mark.slow("writes megabytes")
def test_a_scan_of_several_pages_finds_all_records(
    provider: LockProvider, dynamodb_server: DynamoDBServer, table: str, name: str
) -> None:
    """DynamoDB sends a megabyte per reply."""
    for number in range(12):
        acquired(provider, f"{name}-{number}")
        item = dynamodb_server.item(table, f"{name}-{number}")
        assert item is not None
        dynamodb_server.ask("PutItem", TableName=table, Item=item | {"padding": {"S": "x" * 200_000}})
    assert len(provider.records(name)) == 12
    assert {record.name for record in provider.records()} >= {f"{name}-{number}" for number in range(12)}
    assert record_of(provider, f"{name}-3").is_held
