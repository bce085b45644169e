"""Requests of one operation."""

from __future__ import annotations

from shedlock_py import LockProvider, LockRequest
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.clients import both_clients
from tests.stores.s3.conftest import Open
from tests.support.locks import acquired, record_of
from tests.support.s3 import S3Server

REQUEST = LockRequest("job", "1m")


@both_clients
def test_round_trips_of_each_operation(open_provider: Open, s3_server: S3Server, prefix: str) -> None:
    with TcpProxy(s3_server.address) as proxy:
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


def test_a_skip_writes_nothing(open_provider: Open, s3_server: S3Server, prefix: str) -> None:
    provider, other = open_provider(), open_provider()
    acquired(provider, "job")

    def written() -> object:
        with s3_server.client() as client:
            found = client.head_object(Bucket=s3_server.bucket, Key=f"{prefix}/job.json")
            return found["ETag"], found["LastModified"]

    before = written()
    for _ in range(3):
        assert other.acquire(REQUEST) is None
    assert written() == before
    assert s3_server.keys(prefix) == [f"{prefix}/job.json"]


def test_operations_of_several_leases_do_not_disturb_each_other(provider: LockProvider) -> None:
    """Extensions and releases know the version, even while the provider works on another lock."""
    leases = [acquired(provider, f"job-{number}") for number in range(3)]
    for lease in leases:
        assert provider.extend(lease, "2m") is lease
    assert [provider.release(lease) for lease in reversed(leases)] == [True] * 3


def test_i1_a_late_write_does_not_replace_the_record_of_a_later_holder(
    open_provider: Open, s3_server: S3Server
) -> None:
    """The proxy holds one provider's write until the other provider has the lock."""
    with TcpProxy(s3_server.address) as proxy:
        provider, other = open_provider(proxy.address), open_provider()
        provider.release(acquired(provider, "job"))
        proxy.hold('"name": "job"')
        first = acquired(provider, "job")  # the proxy holds its first copy; the second copy arrives
        assert provider.release(first)
        successor = acquired(other, "job")
        proxy.deliver()
        assert record_of(other, "job").locked_by == successor.locked_by
        assert other.release(successor)
