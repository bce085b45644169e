"""Requests of one operation, and the blobs that they write."""

from __future__ import annotations

import json

from shedlock_py import LockRequest
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.azblob.conftest import Open
from tests.stores.clients import both_clients_in_full
from tests.support.azblob import AzuriteServer
from tests.support.locks import acquired

REQUEST = LockRequest("job", "1m")


@both_clients_in_full
def test_round_trips_of_each_operation(open_provider: Open, azblob_server: AzuriteServer) -> None:
    with TcpProxy(azblob_server.address) as proxy:
        provider, counted = open_provider(proxy.address), {}

        def count(operation: str) -> None:
            counted[operation] = (proxy.round_trips, proxy.connections)
            proxy.reset()

        acquired(provider, "job")
        count("first record of this provider")
        provider.force_release("job")
        proxy.reset()
        lease = acquired(provider, "job")
        count("acquire")
        assert provider.acquire(REQUEST) is None
        count("skip")
        assert provider.extend(lease, "2m") is lease
        count("extend")
        assert provider.release(lease)
        count("release")
        acquired(provider, "another")
        count("new name")
        assert len(provider.records()) == 2
        count("two records")
    assert counted == {
        "first record of this provider": (7, 1),
        "acquire": (2, 0),
        "skip": (1, 0),
        "extend": (1, 0),
        "release": (1, 0),
        "new name": (3, 0),
        "two records": (3, 0),
    }


def test_a_blob_is_json_and_a_skip_writes_nothing(
    open_provider: Open, azblob_server: AzuriteServer, prefix: str
) -> None:
    provider, other = open_provider(), open_provider()
    acquired(provider, "job")
    with azblob_server.client() as client:
        blob = client.get_blob_client(f"{prefix}/job.json")
        before = blob.get_blob_properties()
        assert other.acquire(REQUEST) is None
        assert blob.get_blob_properties().etag == before.etag
        assert before.content_settings.content_type == "application/json"
        assert json.loads(blob.download_blob().readall())["name"] == "job"
