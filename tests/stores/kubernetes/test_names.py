"""Lock names that Kubernetes does not accept get other object names, all different."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shedlock_py import LockRequest, ProviderError
from shedlock_py.model.request import LONGEST_NAME
from shedlock_py.providers.kubernetes.names import object_name
from shedlock_py.testing.contract.base import acquired
from tests.stores.kubernetes.conftest import Open
from tests.support.fake_kubernetes import LEASES
from tests.support.kubernetes import KubernetesServer

# The API server's rejection messages give this pattern. At most 253 characters are allowed.
TAKEN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
NAMES = st.text("aAbB.-_ 0xü€🐑", min_size=1, max_size=LONGEST_NAME) | st.text(min_size=1, max_size=LONGEST_NAME)


@given(NAMES)
def test_kubernetes_takes_every_object_name(name: str) -> None:
    found = object_name(name)
    assert TAKEN.fullmatch(found)
    assert len(found) <= 253
    assert (found == name) is bool(TAKEN.fullmatch(name) and not re.search(r"\.x[0-9a-f]{40}$", name))


@given(NAMES, NAMES)
def test_two_names_have_two_objects(one: str, other: str) -> None:
    assert (object_name(one) == object_name(other)) is (one == other)
    assert object_name(object_name(one)) != object_name(other) or one == other or object_name(one) == other


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nightly-report", r"nightly-report"),
        ("Nightly Report", r"nightly-report\.x[0-9a-f]{40}"),
        ("tenant/7:sync", r"tenant-7-sync\.x[0-9a-f]{40}"),
        ("日次", r"lock\.x[0-9a-f]{40}"),
        ("a.", r"a\.x[0-9a-f]{40}"),
    ],
)
def test_object_names_can_be_read(name: str, expected: str) -> None:
    assert re.fullmatch(expected, object_name(name))


def test_the_true_name_is_in_an_annotation(kubernetes_server: KubernetesServer, open_url: Open, namespace: str) -> None:
    provider, name = open_url(kubernetes_server.url(namespace)), "Nightly Report, ü"
    acquired(provider, LockRequest(name, "1m"))
    (item,) = kubernetes_server.ask("GET", LEASES.format(namespace))["items"]
    assert item["metadata"]["name"] == object_name(name)
    assert item["metadata"]["annotations"]["shedlock-py/name"] == name
    assert [record.name for record in provider.records("Nightly")] == [name]


def test_a_lease_with_the_annotations_of_another_lock(
    kubernetes_server: KubernetesServer, open_url: Open, namespace: str
) -> None:
    """Somebody may have copied the Lease by hand."""
    provider = open_url(kubernetes_server.url(namespace))
    acquired(provider, LockRequest("one", "1m"))
    lease = kubernetes_server.ask("GET", LEASES.format(namespace) + "/one")
    lease["metadata"] = {"name": "two", "annotations": lease["metadata"]["annotations"]}
    kubernetes_server.ask("POST", LEASES.format(namespace), lease)
    with pytest.raises(ProviderError, match="the Lease two is the lock 'one', not 'two'"):
        provider.acquire(LockRequest("two", "1m"))
