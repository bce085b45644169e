"""Replies carry the time. I10, and contradicting replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shedlock_py import LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.model.record import ONCE
from tests.stores.dynamodb.conftest import Open
from tests.support.dates import DateProxy
from tests.support.dynamodb import DynamoDBServer
from tests.support.locks import acquired, record_of

RESOLUTION = timedelta(seconds=1)
ANOTHER_CASE = pytest.mark.slow("another case of the same rule")


@pytest.fixture
def front(dynamodb_server: DynamoDBServer) -> Iterator[DateProxy]:
    with DateProxy(dynamodb_server.address) as front:
        yield front


def test_i10_the_clock_of_this_machine_is_an_hour_off(
    open_provider: Open, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    provider = open_provider()
    acquired(provider, f"{name}-warm")
    now = time.time
    for offset in (3600, -3600):
        monkeypatch.setattr(time, "time", lambda offset=offset: now() + offset)
        lease = acquired(provider, f"{name}{offset}")
        record = record_of(provider, lease.name)
        assert abs(record.locked_at - datetime.fromtimestamp(now(), UTC)) < timedelta(seconds=5)
        assert provider.acquire(LockRequest(lease.name, "1m")) is None
        assert provider.release(lease)


@pytest.mark.slow("attempts until leases end, by two clocks")
def test_i1_front_ends_that_differ_by_the_allowed_error(open_provider: Open, front: DateProxy, name: str) -> None:
    """Neither front end gives away a lease while its holder trusts it."""
    front.offset = 1.0
    holder, other = open_provider(clock_error="1s"), open_provider(front.address, clock_error="1s")
    for first, second in ((holder, other), (other, holder)):
        lease, successor = acquired(first, name, "1s"), None
        while successor is None:
            was_trusted = lease.is_trusted()
            successor = second.acquire(LockRequest(name, "1m"))
            assert successor is None or not was_trusted
            time.sleep(0.15)  # between two attempts
        assert second.release(successor)


class TwoFrontEnds(DateProxy):
    """They reply alternately, and the clock of one is ahead."""

    def seconds_ahead(self) -> float:
        self.offset = 10.0 - self.offset
        return self.offset


class WrongOnce(DateProxy):
    """Send one reply with the time off by :attr:`error` seconds, after :attr:`right` correct replies."""

    error = 0.0
    right = 0

    def seconds_ahead(self) -> float:
        self.right -= 1
        return self.error if self.right == -1 else 0.0


@pytest.mark.parametrize("right", range(2))
def test_i14_a_key_in_use_is_not_forgotten_by_a_wrong_clock(
    open_provider: Open, dynamodb_server: DynamoDBServer, name: str, right: int
) -> None:
    with WrongOnce(dynamodb_server.address) as front:
        holder = open_provider()
        operator: Any = open_provider(front.address)
        lease = acquired(holder, name, "30s", fire_time=ONCE)
        front.error, front.right = 60.0, right
        assert operator.forget_fire_time(name) is False
        assert holder.extend(lease, "30s") is lease


@contextmanager
def ends_after(lock_for: timedelta) -> Iterator[Callable[[datetime], bool]]:
    """Yield a check: was the moment ``lock_for`` after the block? Its tolerance is 3 s, as the store cuts times to
    seconds."""
    began = datetime.now(UTC)
    ended: list[datetime] = []
    yield lambda end: began - RESOLUTION < end - lock_for < ended[0] + 3 * RESOLUTION
    ended.append(datetime.now(UTC))


@pytest.mark.parametrize("error", [-60.0, 60.0])
@pytest.mark.parametrize("right", range(4))
def test_i1_one_reply_of_a_wrong_clock(
    open_provider: Open, dynamodb_server: DynamoDBServer, name: str, right: int, error: float
) -> None:
    """The extended lease stays valid. So does another replica's lease."""
    with WrongOnce(dynamodb_server.address) as front:
        odd, other = open_provider(front.address), open_provider()
        acquired(odd, f"{name}-warm")
        lease, others = acquired(odd, name, "30s"), acquired(other, f"{name}-others", "30s")
        front.error, front.right = error, right
        for _ in range(2):
            assert odd.extend(lease, "30s") is lease
            assert other.acquire(LockRequest(name, "30s")) is None
            assert odd.acquire(LockRequest(others.name, "30s")) is None
            assert other.extend(others, "30s") is others
        assert front.right < 0


@pytest.mark.parametrize(
    "offset", [3600.0, pytest.param(-3600.0, marks=ANOTHER_CASE), pytest.param(30.0, marks=ANOTHER_CASE)]
)
def test_i6_a_clock_that_was_set(open_provider: Open, front: DateProxy, name: str, offset: float) -> None:
    """Undo a grant that used the previous reply's time, and grant the lock again by the right time.

    This happens on a machine that stood still without notice, as in a migration.
    """
    provider, other = open_provider(front.address), open_provider()
    lease = acquired(provider, f"{name}-held", "2h")
    front.offset = offset
    with ends_after(timedelta(seconds=20)) as ends:
        granted = acquired(provider, name, "20s")
    record = record_of(provider, name)
    assert ends(record.lock_until - timedelta(seconds=offset))
    assert (record.locked_by, record.fencing_token) == (granted.locked_by, granted.fencing_token)
    assert ends(record.locked_at - timedelta(seconds=offset - 20))
    if offset > 0:
        front.offset = 0.0
        with ends_after(timedelta(minutes=2)) as ends:
            assert provider.extend(granted, "2m") is granted
        record = record_of(other, name)
        assert record.is_held, "an elector that reads it as free would fail again and again"
        assert ends(record.lock_until), "also where this is before the acquisition"
    assert provider.release(granted)
    for ahead in (0.0, offset):
        front.offset = ahead
        with ends_after(timedelta(hours=4)) as ends:
            assert provider.extend(lease, "4h") is lease
        assert ends(record_of(other, lease.name).lock_until - timedelta(seconds=ahead))


def test_i11_a_fire_time_is_refused_by_a_new_reply_only(open_provider: Open, front: DateProxy, name: str) -> None:
    provider = open_provider(front.address)
    acquired(provider, f"{name}-warm")
    fire_time = datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(ProviderError, match="fire time"):
        provider.acquire(LockRequest(name, "1m", fire_time=fire_time))
    front.offset = 3600.0
    acquired(provider, name, fire_time=fire_time)


@pytest.mark.parametrize(
    "operation",
    ["acquire", pytest.param("extend", marks=ANOTHER_CASE), pytest.param("take_over", marks=ANOTHER_CASE)],
)
def test_i5_front_ends_that_differ_by_more_are_an_error(
    open_provider: Open, dynamodb_server: DynamoDBServer, name: str, operation: str
) -> None:
    provider = open_provider()
    with TwoFrontEnds(dynamodb_server.address) as fronts:
        confused = open_provider(fronts.address, clock_error="1s")
        request = LockRequest(name, "1h")
        if operation == "extend":
            lease = acquired(provider, name)
        with pytest.raises(ProviderUnreachable, match="differ by more than") as caught:
            confused.extend(lease, "2h") if operation == "extend" else getattr(confused, operation)(request)
        assert "clock_error" in (caught.value.hint or "")
        if operation == "acquire":
            assert provider.acquire(request), "nothing is left of the attempt"
        allowed = open_provider(fronts.address, clock_error="11s")
        acquired(allowed, f"{name}-allowed")
