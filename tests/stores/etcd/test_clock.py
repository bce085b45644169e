"""I1, I7, I10: the ``Date`` headers give the time. Each member has a front end, and a test sets its clock."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import Lease, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.providers.etcd import EtcdLockProvider
from shedlock_py.testing.contract.base import eventually
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.etcd.conftest import Open
from tests.support.dates import DateProxy
from tests.support.etcd import EtcdServer
from tests.support.locks import acquired, record_of

HOUR = 3600.0


@pytest.fixture
def fronts(etcd_server: EtcdServer) -> Iterator[list[DateProxy]]:
    """Two front ends, as of two members."""
    with DateProxy(etcd_server.address) as one, DateProxy(etcd_server.address) as other:
        yield [one, other]


def place(front: TcpProxy, prefix: str = "/clock") -> str:
    return "etcd://{}:{}{}".format(*front.address, prefix)


def attempt_until_granted(provider: LockProvider, name: str) -> tuple[Lease, list[float]]:
    """Return the lease and the start of each attempt. The last attempt got the lease."""
    began: list[float] = []

    def attempt() -> Lease | None:
        began.append(time.monotonic())
        return provider.acquire(LockRequest(name, "1m"))

    return eventually(attempt, "a lease"), began


def test_i1_clocks_of_members_that_differ_by_the_allowed_error(
    fronts: list[DateProxy], open_url: Open, name: str
) -> None:
    """The worst moment: one front end's second is about to end, and the other's began long ago."""
    fronts[1].offset = 1.0
    holder, other = (open_url(place(front), clock_error="1s") for front in fronts)
    holder.record(name)
    time.sleep((0.9 - time.time()) % 1)
    lease = acquired(holder, name, "800ms")
    later, _ = attempt_until_granted(other, name)
    assert not lease.is_trusted(), "it was granted while its holder trusted it"
    assert later.fencing_token > lease.fencing_token  # type: ignore[operator]  # this store keeps them
    assert holder.extend(lease, "1m") is None


def test_i1_clocks_that_differ_by_more_overlap_by_so_much_and_tokens_tell(
    fronts: list[DateProxy], open_url: Open, name: str
) -> None:
    """Here exclusion is not promised. The store gives the lease away early; nothing else goes wrong."""
    fronts[1].offset = 12.0
    holder, other = (open_url(place(front), clock_error="1s") for front in fronts)
    lease = acquired(holder, name, "6s")
    successor = acquired(other, name)  # at once
    assert lease.is_trusted()
    assert successor.fencing_token > lease.fencing_token  # type: ignore[operator]  # this store keeps them
    assert holder.extend(lease, "1m") is None
    assert not lease.is_trusted()
    assert other.extend(successor, "2m") is successor


def test_i7_tokens_grow_when_the_clock_jumps(fronts: list[DateProxy], open_url: Open, name: str) -> None:
    provider = open_url(place(fronts[0]))
    tokens = []
    for offset in (0.0, HOUR, -HOUR, 0.0):
        fronts[0].offset = offset
        lease = provider.take_over(LockRequest(name, "1m"))
        tokens.append(lease.fencing_token)
        assert provider.extend(lease, "2m") is lease
        assert provider.acquire(LockRequest(name, "1m")) is None
        assert provider.release(lease) is True
        provider.prune(0)  # the record may be from the future, and stays then
    assert tokens == sorted(set(tokens))  # type: ignore[type-var]  # this store keeps them


def test_i3_a_clock_that_jumps_back_keeps_leases_longer_and_one_that_jumps_forward_ends_them(
    fronts: list[DateProxy], open_url: Open, name: str
) -> None:
    """Any store does this, and the page documents it. The clock does not matter for a released lease."""
    holder, other = (open_url(place(front)) for front in fronts)
    acquired(holder, name, "10m")
    fronts[1].offset = -HOUR
    assert other.acquire(LockRequest(name, "10m")) is None
    fronts[1].offset = HOUR
    lease = acquired(other, name, "10m")
    assert other.release(lease) is True
    fronts[0].offset = -HOUR
    acquired(holder, name, "10m")


def test_a_lease_that_is_extended_after_the_clock_was_set_back_is_held(
    fronts: list[DateProxy], open_url: Open, name: str
) -> None:
    """A candidate reads the record, and takes over a record that looks released."""
    provider = open_url(place(fronts[0]))
    lease = acquired(provider, name)
    fronts[0].offset = -HOUR
    provider.record(name)  # so that the provider knows the record
    assert provider.extend(lease, "1m") is lease
    assert record_of(provider, name).is_held
    assert provider.release(lease) is True
    assert not record_of(provider, name).is_held


@pytest.mark.slow("waits for the clocks of two members")
def test_i7_no_record_is_pruned_whose_token_another_member_could_repeat(
    fronts: list[DateProxy], open_url: Open, name: str
) -> None:
    """The member that prunes is ahead by the allowed error; the next granting member is not."""
    fronts[0].offset = 1.0
    pruning, other = (open_url(place(front, "/prune"), clock_error="1s") for front in fronts)
    last = 0

    def take(provider: LockProvider) -> None:
        nonlocal last
        lease = acquired(provider, name)
        assert lease.fencing_token is not None
        assert lease.fencing_token > last
        last = lease.fencing_token
        provider.release(lease)

    for _ in range(5):
        take(pruning)
        pruning.prune(0)
        take(other)
        pruning.prune(0)

    def is_pruned() -> bool:
        pruning.prune(0)
        return other.record(name) is None

    eventually(is_pruned, "the record is old enough")
    take(other)


def test_i10_a_record_says_what_the_members_clock_says(fronts: list[DateProxy], open_url: Open, name: str) -> None:
    """This machine's wall clock decides nothing."""
    year = 365 * 24 * HOUR
    fronts[0].offset = year
    provider = open_url(place(fronts[0]))
    began = datetime.fromtimestamp(time.time() + year, UTC)
    acquired(provider, name)
    record = record_of(provider, name)
    assert began - timedelta(seconds=2) < record.locked_at < began + timedelta(minutes=1)
    assert timedelta(minutes=1) <= record.lock_until - record.locked_at <= timedelta(minutes=1, seconds=6)


# An inexact clock has the effects that the page documents

ANOTHER_MOMENT = pytest.mark.slow("another moment of a second")


@pytest.mark.parametrize("fraction", [0.95, *(pytest.param(each, marks=ANOTHER_MOMENT) for each in (0.02, 0.5))])
def test_i3_a_lease_is_kept_up_to_two_seconds_and_the_clock_error_longer(
    etcd_server: EtcdServer, name: str, fraction: float
) -> None:
    """The operation may begin at any point within a second. Sync only: the programs are the same."""
    with ExitStack() as stack:
        holder, other = (stack.enter_context(closing(EtcdLockProvider(etcd_server.url()))) for _ in range(2))
        other.record(name)
        holder.record(name)
        time.sleep((fraction - time.time()) % 1)  # wait until that point
        began = time.monotonic()
        lease = acquired(holder, name, "500ms")
        round_trip = time.monotonic() - began
        record = record_of(holder, name)
        assert not lease.has_ended()
        assert record.lock_until - record.locked_at >= timedelta(seconds=1.5)
        _, (*refused, granted) = attempt_until_granted(other, name)
        assert granted + round_trip - began >= 0.5
        assert refused
        assert max(refused) - began < 0.5 + 2.0 + 1.0 + round_trip


# Replies without a time


class WithoutDate(TcpProxy):
    """A front end that removes the header from the moment that a test sets."""

    is_on = True

    def __init__(self, server: EtcdServer, marker: bytes = b"") -> None:
        self._marker = marker
        super().__init__(server.address, rewrite=self._without)

    def _without(self, reply: bytes) -> bytes:
        if not self.is_on or self._marker not in reply:
            return reply
        return re.sub(rb"(?im)^date: [^\r\n]*\r\n", b"", reply, count=1)


def test_i5_a_reply_without_a_date_is_an_error_that_says_so(etcd_server: EtcdServer, open_url: Open, name: str) -> None:
    with WithoutDate(etcd_server) as front:
        provider = open_url(place(front))
        with pytest.raises(ProviderUnreachable, match="no Date header") as caught:
            provider.acquire(LockRequest(name, "1m"))
        assert "Date header" in str(caught.value.hint)
        front.is_on = False
        assert provider.release(acquired(provider, name)) is True


def test_i12_an_acquire_whose_last_reply_has_no_date_is_undone(
    etcd_server: EtcdServer, open_url: Open, name: str
) -> None:
    with WithoutDate(etcd_server, b'"succeeded":true') as front:
        provider = open_url(place(front))
        with pytest.raises(ProviderUnreachable, match="no Date header"):
            provider.acquire(LockRequest(name, "1h"))
        assert not record_of(provider, name).is_held


def test_i10_replies_of_two_threads_do_not_mix_their_times(fronts: list[DateProxy], name: str) -> None:
    """One provider, two members an hour apart; each operation uses the reply to its own read."""
    hosts = ",".join("{}:{}".format(*front.address) for front in fronts)
    fronts[1].offset = HOUR
    with closing(EtcdLockProvider(f"etcd://{hosts}/clock")) as provider:
        errors: list[Any] = []

        def poll() -> None:
            for _ in range(25):
                record = provider.record(name)
                if record is not None and not timedelta(0) < record.remaining < timedelta(minutes=62):
                    errors.append(record)

        acquired(provider, name, "1h")
        threads = [threading.Thread(target=poll) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
