"""client-go's elector and our lock, on the same Lease, exclude each other and read each other correctly."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import LeaderElector, Lease, LockRequest, ProviderError
from shedlock_py.providers.kubernetes import KubernetesLockProvider
from tests.stores.kubernetes.elector import Elector, Record
from tests.support.dates import DateProxy
from tests.support.fake_kubernetes import LEASES
from tests.support.kubernetes import KubernetesServer
from tests.support.locks import record_of
from tests.support.polling import wait_until

NAME = "controller"


class Cluster:
    """A namespace with one Lease. ``clock`` is a front end of the API server, and the test sets its clock."""

    def __init__(self, server: KubernetesServer, clock: DateProxy) -> None:
        self.server, self.clock, self.namespace = server, clock, f"mixed-{uuid4().hex[:8]}"
        self.provider = KubernetesLockProvider(server.url(self.namespace, via=clock.address), clock_error=0)

    def elector(self, identity: str = "go-pod", **options: Any) -> Elector:
        return Elector(self.server, self.namespace, NAME, identity, **options)

    def acquire(self, at_most: str = "10m", at_least: str = "0s") -> Lease | None:
        return self.provider.acquire(LockRequest(NAME, at_most, at_least, holder="py-pod"))

    @property
    def lease(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.ask("GET", f"{LEASES.format(self.namespace)}/{NAME}")
        return found


@pytest.fixture
def cluster(kubernetes_server: KubernetesServer) -> Iterator[Cluster]:
    with DateProxy(kubernetes_server.plain) as clock:
        cluster = Cluster(kubernetes_server, clock)
        yield cluster
        cluster.provider.close()


def test_the_fields_are_those_of_client_go(cluster: Cluster) -> None:
    def spec() -> dict[str, Any]:
        found: dict[str, Any] = cluster.lease["spec"]
        return found

    lease = cluster.acquire("30s")
    assert lease is not None
    assert spec() == {
        "holderIdentity": lease.locked_by,
        "leaseDurationSeconds": 32,  # the provider adds the part of a second that the Date header lacks
        "acquireTime": spec()["renewTime"],
        "renewTime": spec()["renewTime"],
        "leaseTransitions": 0,
    }
    cluster.provider.extend(lease, "50s")
    assert (spec()["leaseDurationSeconds"], spec()["leaseTransitions"]) == (52, 0)
    assert spec()["acquireTime"] < spec()["renewTime"]
    cluster.provider.release(lease)
    assert (spec()["holderIdentity"], spec()["leaseDurationSeconds"], spec()["leaseTransitions"]) == ("", 1, 0)
    assert cluster.acquire()
    assert spec()["leaseTransitions"] == 1


def test_it_keeps_out_of_our_lease_as_long_as_we_trust_it(cluster: Cluster) -> None:
    elector = cluster.elector(seconds=2)
    lease = cluster.acquire("10m")
    assert lease is not None
    for elector.now in (0.0, 15.0, 600.0):
        assert elector.try_acquire_or_renew() is False
    assert cluster.provider.extend(lease, "10m") is lease
    elector.now = 603.0
    assert elector.try_acquire_or_renew() is False, "it has seen the renewal"
    elector.now += 603.0
    assert elector.try_acquire_or_renew() is True
    assert cluster.provider.extend(lease, "10m") is None
    assert cluster.lease["spec"]["holderIdentity"] == "go-pod"


def test_it_gets_a_released_lock_at_once_and_a_minimum_hold_keeps_it_out(cluster: Cluster) -> None:
    elector = cluster.elector()
    lease = cluster.acquire("10m", "40s")
    assert lease is not None
    assert elector.try_acquire_or_renew() is False
    cluster.provider.release(lease)
    for elector.now in (0.0, 40.0):
        assert elector.try_acquire_or_renew() is False
    elector.now = 43.0
    assert elector.try_acquire_or_renew() is True
    elector.release()
    lease = cluster.acquire()
    assert lease is not None
    cluster.provider.release(lease)
    assert cluster.elector("other").try_acquire_or_renew() is True


def test_it_sees_each_of_our_renewals_although_it_compares_whole_seconds(cluster: Cluster) -> None:
    lease = cluster.acquire("1m")
    assert lease is not None
    seen = [Record.of(cluster.lease)]
    for at_most in ("1m", "1m", "2m", "1m", "1m"):
        cluster.provider.extend(lease, at_most)
        seen.append(Record.of(cluster.lease))
    assert len({*seen}) == len(seen)


@pytest.mark.parametrize("skew", [0.0, 3600.0, -3600.0])
def test_we_keep_out_of_its_lease_whatever_time_its_node_has(cluster: Cluster, skew: float) -> None:
    elector = cluster.elector(seconds=15, skew=skew)
    assert elector.try_acquire_or_renew() is True
    assert cluster.acquire() is None
    record = cluster.provider.record(NAME)
    assert record is not None
    assert (record.is_held, record.holder, record.is_released) == (True, "go-pod", None)
    assert record.locked_at <= record.read_at, "locked in the past"
    cluster.clock.offset = 14.0
    assert cluster.acquire() is None
    assert elector.try_acquire_or_renew() is True
    cluster.clock.offset = 18.0
    lease = cluster.acquire()
    assert lease is not None
    assert elector.try_acquire_or_renew() is False
    assert elector.is_leader is False


def test_we_get_what_it_has_given_back_at_once_and_tokens_grow(cluster: Cluster) -> None:
    first = cluster.acquire()
    assert first is not None
    cluster.provider.release(first)
    elector = cluster.elector()
    assert elector.try_acquire_or_renew() is True
    assert cluster.provider.release(first) is False
    assert elector.release() is True
    second = cluster.acquire()
    assert second is not None
    assert second.fencing_token > first.fencing_token  # type: ignore[operator]  # this store has tokens
    assert cluster.lease["spec"]["leaseTransitions"] == 2


def test_an_operator_frees_it_from_an_elector(cluster: Cluster) -> None:
    elector = cluster.elector()
    assert elector.try_acquire_or_renew() is True
    assert cluster.provider.force_release(NAME) is True
    assert cluster.acquire()
    assert elector.try_acquire_or_renew() is False


def test_i2_an_operator_does_not_touch_a_later_term_of_an_elector(cluster: Cluster) -> None:
    """client-go writes whole seconds."""
    elector = cluster.elector()
    assert elector.try_acquire_or_renew() is True
    record = record_of(cluster.provider, NAME)

    def acquires_later() -> bool:
        assert elector.release() is True
        assert elector.try_acquire_or_renew() is True
        return record_of(cluster.provider, NAME).locked_at > record.locked_at

    wait_until(acquires_later)
    assert cluster.provider.force_release(NAME, record) is False
    with pytest.raises(ProviderError, match="changed since it was read"):
        cluster.provider.take_over(LockRequest(NAME, "1m"), record)
    assert elector.try_acquire_or_renew() is True


def test_the_fire_time_survives_an_elector(cluster: Cluster) -> None:
    fire_time = datetime.fromisoformat("2026-01-01T12:00:00+00:00")
    request = LockRequest(NAME, "1m", fire_time=fire_time)
    lease = cluster.provider.acquire(request)
    assert lease is not None
    cluster.provider.release(lease)
    elector = cluster.elector()
    assert elector.try_acquire_or_renew() is True
    spec = cluster.lease["spec"]
    assert cluster.provider.forget_fire_time(NAME) is True
    assert cluster.lease["spec"] == spec, "it is still the elector's"
    elector.seconds = 60
    assert elector.try_acquire_or_renew() is True
    cluster.clock.offset = 40.0
    assert cluster.acquire() is None, "the annotation is older than this renewal"
    cluster.clock.offset = 0.0
    elector.release()
    assert cluster.provider.acquire(request)


def test_without_the_servers_own_time_its_renew_time_counts(cluster: Cluster) -> None:
    elector = cluster.elector(seconds=15)
    assert elector.try_acquire_or_renew() is True
    lease = cluster.lease
    lease["metadata"]["managedFields"] = [{}]  # a client removes the notes this way
    cluster.server.ask("PUT", f"{LEASES.format(cluster.namespace)}/{NAME}", lease)
    assert cluster.acquire() is None
    cluster.clock.offset = 18.0
    assert cluster.acquire()


def test_what_others_keep_in_the_lease_stays(cluster: Cluster) -> None:
    elector = cluster.elector()
    assert elector.try_acquire_or_renew() is True
    lease = cluster.lease
    lease["metadata"].update(labels={"team": "a"}, annotations={"note": "b"})
    cluster.server.ask("PUT", f"{LEASES.format(cluster.namespace)}/{NAME}", lease)
    cluster.provider.take_over(LockRequest(NAME, "1m"))
    metadata = cluster.lease["metadata"]
    assert metadata["labels"]["team"] == "a"
    assert metadata["annotations"]["note"] == "b"


def test_an_elector_of_ours_and_one_of_client_go_exclude_each_other(cluster: Cluster) -> None:
    def elector_of_ours() -> LeaderElector:
        return LeaderElector(
            cluster.provider, NAME, holder="py-pod", lease_duration="6s", renew_deadline="4s", retry_period="200ms"
        )

    theirs = cluster.elector()
    with elector_of_ours() as ours:
        wait_until(ours.is_leader)
        assert theirs.try_acquire_or_renew() is False
        renewed = cluster.lease["spec"]["renewTime"]
        wait_until(lambda: cluster.lease["spec"]["renewTime"] > renewed)
        assert theirs.try_acquire_or_renew() is False
    assert theirs.try_acquire_or_renew() is True, "ours has resigned"
    with elector_of_ours() as ours:
        record = ours.leader()
        assert record is not None
        assert record.holder == "go-pod"
        assert theirs.try_acquire_or_renew() is True
        assert not ours.is_leader()
        theirs.release()
        wait_until(ours.is_leader)
        assert theirs.try_acquire_or_renew() is False


@pytest.mark.slow("the fake is so quick that one kind may always win")
def test_of_racing_electors_and_locks_one_wins(cluster: Cluster) -> None:
    def compete(number: int) -> bool:
        if number % 2:
            return cluster.acquire() is not None
        return cluster.elector(f"go-{number}").try_acquire_or_renew()

    winners = {True: 0, False: 0}
    with ThreadPoolExecutor(8) as pool:
        for number in range(30):
            won = list(pool.map(compete, range(8)))
            assert sum(won) == 1
            winners[bool(won.index(True) % 2)] += 1
            if number % 2:
                cluster.provider.force_release(NAME)
            else:
                cluster.server.delete(cluster.namespace, NAME)
    assert min(winners.values()) > 0
