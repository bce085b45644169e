"""The fake replies like a real API server: the tests send both the same requests and compare the replies."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.availability import private_server
from tests.support.fake_kubernetes import API_VERSION, LEASES
from tests.support.kubernetes import FakeApiServer, KubernetesServer
from tests.support.polling import wait_until

pytestmark = pytest.mark.slow("needs the real API server")

NOBODY = "00000000-0000-0000-0000-000000000000"
TIME = "2026-01-01T00:00:00.000000Z"


@pytest.fixture(scope="module")
def fake() -> Iterator[KubernetesServer]:
    with private_server("kubernetes", FakeApiServer) as server:
        yield server


class Conversation:
    """Requests to one server about Leases in their own namespace, and the replies without the differing parts."""

    def __init__(self, server: KubernetesServer) -> None:
        self.server, self.namespace = server, f"compared-{uuid4().hex[:8]}"
        self.path = LEASES.format(self.namespace)
        self.replies: list[Any] = []
        self._client = httpx.Client(base_url="http://{}:{}".format(*server.plain))
        self._names: dict[str, str] = {}

    def send(self, method: str, path: str, body: Any = None, *, client: httpx.Client | None = None) -> Any:
        """Return the reply's JSON. ``path`` starts after the namespace's URL, or at the root."""
        content = body if isinstance(body, bytes) else None
        response = (client or self._client).request(
            method,
            path if path.startswith("/api") else self.path + path,
            content=content,
            json=None if content else body,
            headers={"User-Agent": "someone/1.0", "Content-Type": "application/json"},
        )
        assert parsedate_to_datetime(response.headers["Date"]).tzinfo is not None
        reply = response.json() if response.content[:1] == b"{" else response.text
        self.replies.append((method, path, response.status_code, self._comparable(reply)))
        return reply

    def create(self, name: str, spec: Any = None, manager: str = "one", **metadata: Any) -> Any:
        return self.send("POST", f"?fieldManager={manager}", lease_named(name, spec or {}, **metadata))

    def update(self, lease: Any, manager: str = "one", **spec: Any) -> Any:
        """Change fields of ``spec``. Like our provider, leave out the server's notes."""
        metadata = {key: value for key, value in lease["metadata"].items() if key != "managedFields"}
        body = {**lease, "metadata": metadata, "spec": {**lease.get("spec", {}), **spec}}
        return self.send("PUT", f"/{metadata['name']}?fieldManager={manager}", body)

    def close(self) -> None:
        self._client.close()

    def _comparable(self, reply: Any, key: str = "") -> Any:
        if isinstance(reply, Mapping):
            if reply.get("reason") in WORDED:
                reply = {key: value for key, value in reply.items() if key != "message"}
            return {
                name: self._comparable(value, name)
                for name, value in sorted(reply.items())
                if name not in LEFT_OUT and (name != "message" or "field" not in reply)
            }
        if isinstance(reply, list):
            return sorted((self._comparable(one) for one in reply), key=repr)
        if key in ("uid", "resourceVersion"):
            return self._names.setdefault(str(reply), f"{key} {len(self._names)}")
        if key in ("time", "creationTimestamp"):
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", reply)
            return "a time"
        return reply.replace(self.namespace, "the namespace") if isinstance(reply, str) else reply


WORDED = ("Invalid", "BadRequest")
"""Errors with messages that quote Go, or the schema."""
LEFT_OUT = ("generation",)
"""The real server counts changes of a custom resource; a Lease in a full cluster does not have this field."""


def lease_named(name: str, spec: Any, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "Lease", "metadata": {"name": name, **metadata}, "spec": spec}


def a_lease_that_is_missing(talk: Conversation) -> None:
    talk.send("GET", "/job")
    talk.send("PUT", "/job", lease_named("job", {}, resourceVersion="1"))
    talk.send("PUT", "/job", lease_named("job", {}, resourceVersion="1", uid=NOBODY))
    talk.send("DELETE", "/job")
    talk.send("DELETE", "/job", {"preconditions": {"uid": NOBODY}})


def a_lease_that_is_made(talk: Conversation) -> None:
    created = talk.create("job", {"holderIdentity": "a", "leaseDurationSeconds": 9, "acquireTime": TIME})
    talk.create("job", {"holderIdentity": "b"})
    assert talk.send("GET", "/job") == created
    talk.create("other", labels={}, annotations={"one": "1", "two": ""})
    talk.send("POST", "", {"apiVersion": API_VERSION, "kind": "Lease", "metadata": {"name": "bare"}})
    talk.send("POST", "", lease_named("placed", {}, namespace=talk.namespace))
    talk.send("POST", "", lease_named("misplaced", {}, namespace="elsewhere"))


def a_lease_that_is_updated(talk: Conversation) -> None:
    first = talk.create("job", {"holderIdentity": "a", "leaseTransitions": 0}, labels={"team": "a"})
    second = talk.update(first, holderIdentity="b")
    talk.update(first, holderIdentity="c")
    assert talk.send("GET", "/job") == second
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    same = talk.update(second)
    assert same["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
    talk.update({**second, "metadata": {**second["metadata"], "labels": {}}})
    latest = talk.send("GET", "/job")
    without = {key: value for key, value in latest["metadata"].items() if key != "resourceVersion"}
    talk.update({**latest, "metadata": without}, holderIdentity="d")
    talk.send("PUT", "/other", latest)
    talk.update({**latest, "metadata": {**latest["metadata"], "namespace": "elsewhere"}})


def a_lease_of_another_uid(talk: Conversation) -> None:
    """Somebody deleted the name and made it again. The message names the uids, and the real server's storage."""
    lease = talk.create("job", {"holderIdentity": "a"})
    other = {**lease, "metadata": {**lease["metadata"], "uid": NOBODY}}
    assert talk.update(other, holderIdentity="b")["reason"] == "Conflict"
    assert talk.send("DELETE", "/job", {"preconditions": {"uid": NOBODY}})["reason"] == "Conflict"
    assert talk.send("DELETE", "/job", {"preconditions": {"resourceVersion": "1"}})["reason"] == "Conflict"
    for number in (-3, -2, -1):
        *request, reply = talk.replies[number]
        talk.replies[number] = (*request, {**reply, "message": ""})


def a_lease_that_is_deleted(talk: Conversation) -> None:
    first = talk.create("job", {"holderIdentity": "a"})
    second = talk.update(first, holderIdentity="b")
    conditions = {key: second["metadata"][key] for key in ("uid", "resourceVersion")}
    talk.send("DELETE", "/job", {"preconditions": conditions})
    talk.send("GET", "/job")
    talk.update(second, holderIdentity="c")
    again = talk.create("job", {"holderIdentity": "a"})
    assert again["metadata"]["uid"] != first["metadata"]["uid"]
    assert int(again["metadata"]["resourceVersion"]) > int(second["metadata"]["resourceVersion"])


def lists(talk: Conversation) -> None:
    talk.send("GET", "")
    for name, labels in (("b", {"lock": ""}), ("a", {"lock": "x"}), ("c", {"other": ""}), ("d", {})):
        talk.create(name, labels=labels)
    found = talk.send("GET", "?labelSelector=lock")
    assert [lease["metadata"]["name"] for lease in found["items"]] == ["a", "b"]
    talk.send("GET", "")
    talk.send("DELETE", "")
    talk.send("GET", "")


def names(talk: Conversation) -> None:
    for name in ("", "a.b", "a..b", "Big", "-a", "a_b", "a" * 253, "a" * 254, "ü", "a/b"):
        talk.create(name)


def specs(talk: Conversation) -> None:
    for number, spec in enumerate(
        [
            {}, {"unknown": 1}, {"holderIdentity": ""}, {"holderIdentity": None}, {"holderIdentity": 7},
            *({"leaseDurationSeconds": value} for value in (1, 0, -1, "1", None, True, 1.5)),
            *({"leaseTransitions": value} for value in (0, -1)),
            *({"renewTime": value} for value in (TIME, "2026-01-01T00:00:00Z", "now", "", 7, None)),
            {"acquireTime": "2026-01-01T00:00:00.000000+01:00", "strategy": "a", "preferredHolder": "b"},
            {"leaseDurationSeconds": 0, "leaseTransitions": -1},
        ]
    ):  # fmt: skip
        talk.create(f"lease-{number}", spec)
    lease = talk.create("job", {"holderIdentity": "a"})
    talk.update(lease, leaseDurationSeconds=0)


def notes_of_managers(talk: Conversation) -> None:
    lease = talk.create("job", {"holderIdentity": "a", "leaseTransitions": 0}, annotations={"x": "1"})
    lease = talk.update(lease, "two", holderIdentity="b", leaseDurationSeconds=5)
    metadata = {**lease["metadata"], "labels": {"team": "a"}, "annotations": {"x": "2", "y": "3"}}
    lease = talk.update({**lease, "metadata": metadata}, "three")
    lease = talk.update(lease, "one", holderIdentity="b", leaseTransitions=1)
    lease = talk.send("PUT", "/job", {**lease, "spec": {"holderIdentity": "c"}})  # with the server's notes
    lease = talk.send("PUT", "/job", {**lease, "spec": {}})
    reset = {**lease, "metadata": {**lease["metadata"], "managedFields": [{}]}}
    lease = talk.send("PUT", "/job", reset)
    talk.update(lease, "two", holderIdentity="d")


def other_requests(talk: Conversation) -> None:
    for body in (b"{", b"[]", b"7"):
        talk.send("POST", "", body)
    talk.send("POST", "", {"metadata": {"name": "a"}})
    talk.send("POST", "", {"apiVersion": API_VERSION, "kind": "Other", "metadata": {"name": "a"}})
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {}}
    talk.send("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)


def users(talk: Conversation) -> None:
    """Users have tokens and connect over TLS."""
    server = talk.server
    server.reviewer.users["reads"], server.reviewer.verbs["reader"] = "reader", {"get"}
    context = ssl.create_default_context(cafile=str(server.certificates.authority))
    talk.create("job")
    for headers in ({}, {"Authorization": "Bearer nobody's"}, {"Authorization": "bearer reads"}):
        url = "https://{}:{}".format(*server.address)
        with httpx.Client(base_url=url, verify=context, headers=headers) as client:
            for method, path in (("GET", "/job"), ("GET", ""), ("DELETE", "/job")):
                talk.send(method, path, client=client)
            talk.send("POST", "", lease_named("other", {}), client=client)
            talk.send("PUT", "/job", lease_named("job", {}), client=client)


@pytest.mark.parametrize(
    "requests",
    [a_lease_that_is_missing, a_lease_that_is_made, a_lease_that_is_updated, a_lease_of_another_uid,
     a_lease_that_is_deleted, lists, names, specs, notes_of_managers, other_requests, users],
)  # fmt: skip
def test_the_same_replies(
    fake: KubernetesServer, real_kubernetes_server: KubernetesServer, requests: Callable[[Conversation], None]
) -> None:
    transcripts = []
    for server in (fake, real_kubernetes_server):
        talk = Conversation(server)
        requests(talk)
        talk.close()
        transcripts.append(talk.replies)
    assert transcripts[0] == transcripts[1]


@pytest.fixture(params=["fake", "real_kubernetes_server"])
def talk(request: pytest.FixtureRequest) -> Iterator[Conversation]:
    talk = Conversation(request.getfixturevalue(request.param))
    yield talk
    talk.close()


def test_of_racing_writes_one_wins(talk: Conversation) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(lambda number: talk.create("job", {"holderIdentity": str(number)}), range(16))
        (lease,) = (reply for reply in made if reply["kind"] == "Lease")
        written = pool.map(lambda number: talk.update(lease, holderIdentity=f"next {number}"), range(16))
        assert [reply["kind"] for reply in written].count("Lease") == 1


def test_a_note_has_the_time_of_the_last_change(talk: Conversation) -> None:
    """The provider uses this time to compute the end of an elector's lease."""

    def times(lease: Any) -> dict[str, str]:
        return {note["manager"]: note["time"] for note in lease["metadata"]["managedFields"]}

    lease = talk.create("job", {"holderIdentity": "a"})
    before = times(lease)
    second = int(time.time())
    wait_until(lambda: int(time.time()) > second, what="another second of the server's clock")
    lease = talk.update(lease, "one")
    assert times(lease) == before, "nothing has changed"
    lease = talk.update(lease, "two", leaseTransitions=1)
    assert times(lease)["one"] == before["one"]
    assert times(lease)["two"] > before["one"]
    lease = talk.update(lease, "one", holderIdentity="b")
    assert times(lease)["one"] > before["one"]
