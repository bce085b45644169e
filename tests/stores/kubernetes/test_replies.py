"""Replies of the API server or of a proxy before it, and Leases with odd values."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.model.record import LockRecord
from shedlock_py.providers.cas import CasCommand, Delete, Entry, List, Read, Write
from shedlock_py.providers.kit import ErrorReply, Failure
from shedlock_py.providers.kubernetes.lease import RECORD, entry_of
from shedlock_py.providers.kubernetes.wire import AccessReview, call_of, value_of
from shedlock_py.testing.contract.base import acquired, granted_soon, record_of
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.kubernetes.conftest import Open
from tests.support.closing import close_before_requests
from tests.support.dates import DateProxy
from tests.support.fake_kubernetes import LEASES
from tests.support.kubernetes import KubernetesServer

REQUEST = LockRequest("job", "1m")


def test_an_acquire_takes_two_round_trips_and_all_else_one(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str
) -> None:
    """An acquire takes two (a read and a write), and one more for a name's first record. Each other operation takes
    one."""
    with TcpProxy(kubernetes_server.plain) as proxy:
        provider = open_url(kubernetes_server.url(namespace, via=proxy.address))
        assert provider.release(acquired(provider, REQUEST))
        assert proxy.round_trips == 3 + 1
        counted: set[tuple[str, int]] = set()

        def count(operation: str) -> None:
            counted.add((operation, proxy.round_trips))
            proxy.reset()

        for _ in range(3):
            proxy.reset()
            lease = acquired(provider, REQUEST)
            count("acquire")
            assert provider.acquire(REQUEST) is None
            count("skip")
            assert provider.extend(lease, "2m") is lease
            count("extend")
            assert provider.release(lease)
            count("release")
    assert counted == {("acquire", 2), ("skip", 1), ("extend", 1), ("release", 1)}


def test_a_skip_writes_nothing(kubernetes_server: KubernetesServer, open_url: Open, namespace: str) -> None:
    provider = open_url(kubernetes_server.url(namespace))
    acquired(provider, REQUEST)
    before = kubernetes_server.ask("GET", LEASES.format(namespace) + "/job")
    for _ in range(3):
        assert provider.acquire(REQUEST) is None
    assert kubernetes_server.ask("GET", LEASES.format(namespace) + "/job") == before


@pytest.mark.parametrize(
    "make", [lambda entry: Write(entry.record, entry.version), lambda entry: Delete("job", entry.version)]
)
def test_a_lease_of_a_recreated_cluster_is_neither_written_nor_deleted(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str, make: Callable[[Entry], CasCommand]
) -> None:
    """The name and the version are the same by chance, but the uid differs."""
    acquired(open_url(kubernetes_server.url(namespace)), REQUEST)
    lease = kubernetes_server.ask("GET", LEASES.format(namespace) + "/job")
    call = call_of(
        make(entry_of({**lease, "metadata": {**lease["metadata"], "uid": str(uuid4())}}, timedelta(0))), namespace
    )
    with pytest.raises(urllib.error.HTTPError, match="409") as caught:
        kubernetes_server.ask(call.method, call.path, call.body)
    caught.value.close()
    assert kubernetes_server.ask("GET", LEASES.format(namespace) + "/job") == lease


def test_i5_a_provider_that_another_thread_closes(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_before_requests(monkeypatch)
    with pytest.raises(ProviderUnreachable, match="the client has been closed"):
        open_url(kubernetes_server.url(namespace)).acquire(REQUEST)


# Front ends with different clocks


@pytest.mark.parametrize("ahead", [1.0, -1.0])
def test_i1_front_ends_that_differ_by_the_allowed_error(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str, ahead: float
) -> None:
    with DateProxy(kubernetes_server.plain) as one, DateProxy(kubernetes_server.plain, ahead) as other:
        holder, follower = (
            open_url(kubernetes_server.url(namespace, via=front.address), clock_error="1s") for front in (one, other)
        )
        lease = acquired(holder, LockRequest("job", "400ms"))
        successor = granted_soon(follower, REQUEST)
        assert not lease.is_trusted()
        assert successor.fencing_token > lease.fencing_token  # type: ignore[operator]  # this store keeps them


def test_i1_front_ends_that_differ_by_more_overlap_and_tokens_tell(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str
) -> None:
    """Here exclusion is not promised, as the page documents."""
    with DateProxy(kubernetes_server.plain) as one, DateProxy(kubernetes_server.plain, 70.0) as other:
        holder, follower = (open_url(kubernetes_server.url(namespace, via=front.address)) for front in (one, other))
        lease, successor = acquired(holder, REQUEST), acquired(follower, LockRequest("job", "2m"))
        assert lease.is_trusted()
        assert successor.fencing_token > lease.fencing_token  # type: ignore[operator]  # this store keeps them
        assert holder.extend(lease, "1m") is None
        assert follower.extend(successor, "2m") is successor


@pytest.mark.parametrize("offset", [3600.0, -3600.0])
def test_i10_the_clock_of_this_machine_decides_nothing(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str, offset: float
) -> None:
    with DateProxy(kubernetes_server.plain, offset) as front:
        provider = open_url(kubernetes_server.url(namespace, via=front.address), clock_error=0)
        lease = acquired(provider, REQUEST)
        assert abs(record_of(provider, "job").locked_at.timestamp() - time.time() - offset) < 30
        assert provider.acquire(REQUEST) is None
        assert provider.release(lease) is True
        assert provider.release(acquired(provider, REQUEST)) is True


# Errors


def status(reason: str, **details: str) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "message": f"{reason}!", "reason": reason, "details": details}


def refusal(command: Any, code: int, reply: Any) -> ErrorReply:
    with pytest.raises(ErrorReply) as caught:
        value_of(command, code, reply, timedelta(0))
    return caught.value


RECORD_OF_JOB = LockRecord("job", "a#b", *3 * (None,), None, None)  # type: ignore[arg-type]  # only its name counts
CREATE = Write(RECORD_OF_JOB, None)


def test_a_namespace_that_is_missing_is_no_lease_that_is_missing() -> None:
    """A full API server sends these replies; ours has no namespaces."""
    assert value_of(Read("job"), 404, status("NotFound", name="job", kind="leases"), timedelta(0)) is None
    error = refusal(CREATE, 404, status("NotFound", name="team", kind="namespaces"))
    assert error.failure is Failure.REFUSED
    assert "create the namespace" in str(error.hint)


def test_a_server_without_leases(kubernetes_server: KubernetesServer, namespace: str) -> None:
    """A server replies this way for any unknown resource."""
    for reply in (None, status("NotFound")):
        for command in (Read("job"), CREATE):
            error = refusal(command, 404, reply)
            assert error.failure is Failure.REFUSED
            assert "coordination.k8s.io/v1" in str(error.hint)


@pytest.mark.parametrize(
    ("code", "expected"),
    [(429, Failure.NOT_DONE), (500, Failure.UNREACHABLE), (503, Failure.UNREACHABLE), (504, Failure.UNREACHABLE),
     (200, Failure.UNREACHABLE), (302, Failure.UNREACHABLE), (422, Failure.REFUSED)],
)  # fmt: skip
def test_errors_that_go_away_and_errors_that_stay(code: int, expected: Failure) -> None:
    assert refusal(CREATE, code, None).failure is expected


def review(allowed: bool) -> dict[str, Any]:
    return {"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}


@pytest.mark.parametrize(
    ("code", "reply", "expected"),
    [(201, review(True), True), (201, review(False), False),
     (404, None, None), (403, status("Forbidden"), None)],
)  # fmt: skip
def test_what_we_may_do(code: int, reply: Any, expected: bool | None) -> None:
    assert value_of(AccessReview("get"), code, reply, timedelta(0)) is expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "hello", "[]", "null", "7", "{}", '{"locked_by": 7}', '{"locked_by": "a#b"}'),
        pytest.param("[" * 9999, id="deep"),
    ],
)
def test_an_annotation_with_odd_values_is_refused_and_hides_no_other(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider = open_url(kubernetes_server.url(namespace))
    for request in (REQUEST, LockRequest("good", "1m")):
        acquired(provider, request)
    path = LEASES.format(namespace) + "/job"
    lease = kubernetes_server.ask("GET", path)
    lease["metadata"]["annotations"][RECORD] = text
    kubernetes_server.ask("PUT", path, lease)
    with pytest.raises(ProviderError, match="not a lock record") as caught:
        provider.acquire(REQUEST)
    assert not isinstance(caught.value, ProviderUnreachable)
    assert [record.name for record in provider.records()] == ["good"]
    assert "the Lease 'job' is left out" in caplog.text
    provider.prune("1h")
    assert record_of(provider, "good").is_held


def test_a_lease_that_ends_beyond_the_calendar_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Another program's elector may write such an end."""
    spec = {"holderIdentity": "go-pod", "renewTime": "9999-12-31T23:00:00.000000Z", "leaseDurationSeconds": 2**31 - 1}
    leases = [{"metadata": {"name": "far"}, "spec": spec}, {"metadata": {"name": "near"}, "spec": {}}]
    entries = value_of(List(""), 200, {"kind": "LeaseList", "items": leases}, timedelta(0))
    assert [entry.record.name for entry in entries] == ["near"]
    assert "the Lease 'far' is left out" in caplog.text


@pytest.mark.parametrize("spec", [{}, {"holderIdentity": "a", "leaseDurationSeconds": 9}])
def test_a_lease_that_lacks_fields(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str, spec: dict[str, Any]
) -> None:
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "job"}, "spec": spec}
    kubernetes_server.ask("POST", LEASES.format(namespace), body)
    provider = open_url(kubernetes_server.url(namespace))
    record = record_of(provider, "job")
    assert record.holder == spec.get("holderIdentity", "")
    assert record.is_held is ("leaseDurationSeconds" in spec)
    assert (provider.acquire(REQUEST) is None) is record.is_held


def test_i3_what_others_write_into_the_lease_of_an_elector_does_not_prolong_it() -> None:
    def written(by: str, at: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {"manager": by, "time": f"2030-01-01T{at}Z", "fieldsV1": fields}

    renewal = written("controller", "12:00:00", {"f:spec": {"f:holderIdentity": {}, "f:renewTime": {}}})
    others = [
        written("kubectl-label", "12:30:00", {"f:metadata": {"f:labels": {"f:team": {}}}}),
        written("operator", "12:40:00", {"f:spec": {"f:strategy": {}}}),
    ]
    lease = {
        "metadata": {"name": "job", "managedFields": [renewal, *others]},
        "spec": {"holderIdentity": "go-pod", "leaseDurationSeconds": 15, "renewTime": "2030-01-01T12:00:00.000000Z"},
    }
    until = entry_of(lease, timedelta(seconds=1)).record.lock_until
    assert until.isoformat() == "2030-01-01T12:00:17+00:00", "15 s, one that the server cuts off, and the clock error"
