"""The time is that of the replies. I10, and what happens when two replies contradict each other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from shedlock_py import LockRequest, ProviderUnreachable
from shedlock_py.testing.contract.base import acquired, record_of
from tests.stores.dynamodb.conftest import Open
from tests.support.dates import DateProxy
from tests.support.dynamodb import DynamoDBServer


@pytest.fixture
def front(dynamodb_server: DynamoDBServer) -> Iterator[DateProxy]:
    with DateProxy(dynamodb_server.address) as front:
        yield front


def test_i10_the_clock_of_this_machine_is_an_hour_off(
    open_provider: Open, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    provider = open_provider()
    acquired(provider, LockRequest(f"{name}-warm", "1m"))
    now = time.time
    for offset in (3600, -3600):
        monkeypatch.setattr(time, "time", lambda offset=offset: now() + offset)
        lease = acquired(provider, LockRequest(f"{name}{offset}", "1m"))
        record = record_of(provider, lease.name)
        assert abs(record.locked_at - datetime.fromtimestamp(now(), UTC)) < timedelta(seconds=5)
        assert provider.acquire(LockRequest(lease.name, "1m")) is None
        assert provider.release(lease)


@pytest.mark.parametrize("offset", [-2.0, 2.0])
def test_i1_front_ends_that_differ_by_the_allowed_error(
    open_provider: Open, front: DateProxy, name: str, offset: float
) -> None:
    """A lease of one front end is never free for the other while its holder trusts it."""
    front.offset = offset
    holder, other = open_provider(clock_error="2s"), open_provider(front.address, clock_error="2s")
    for first, second in ((holder, other), (other, holder)):
        lease, successor = acquired(first, LockRequest(name, "1s")), None
        while successor is None:
            was_trusted = lease.is_trusted()
            successor = second.acquire(LockRequest(name, "1m"))
            assert successor is None or not was_trusted
            time.sleep(0.02)
        assert second.release(successor)


@pytest.mark.parametrize("offset", [-3600.0, 3600.0])
def test_i5_a_reply_that_contradicts_the_one_before_is_an_error(
    open_provider: Open, front: DateProxy, name: str, offset: float
) -> None:
    """The clock of the service was set, or the front ends differ by more than allowed: nothing is granted by it."""
    provider, other = open_provider(front.address), open_provider()
    lease = acquired(provider, LockRequest(f"{name}-held", "1h"))
    front.offset = offset
    with pytest.raises(ProviderUnreachable, match="differ by more than") as caught:
        provider.acquire(LockRequest(name, "1m"))
    assert "clock_error" in (caught.value.hint or "")
    assert not record_of(other, name).is_held, "what was granted is undone"
    acquired(provider, LockRequest(name, "1m"))  # by the time of the last reply
    front.offset = 0.0
    with pytest.raises(ProviderUnreachable, match="differ by more than"):
        provider.extend(lease, "2h")
    if offset < 0:
        assert provider.extend(lease, "2h") is lease


def test_i6_a_machine_that_stood_still_and_does_not_know(open_provider: Open, front: DateProxy, name: str) -> None:
    """As after a migration: by its clock no time has passed, and a lease that it writes would have ended already."""
    provider, other = open_provider(front.address, clock_error="1s"), open_provider(clock_error="1s")
    acquired(provider, LockRequest(f"{name}-warm", "1m"))
    front.offset = 30.0
    with pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(name, "5s"))
    assert not record_of(other, name).is_held
