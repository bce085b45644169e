"""Faults that the search found in shedlock_py: the same steps, on real stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import InMemoryLockProvider, LockRequest
from shedlock_py.model.lease import Claim
from shedlock_py.testing import FakeClock
from shedlock_py.testing.proxy import TcpProxy
from tests.support.locks import acquired
from tests.support.stores import Store

SQL = ("postgres", "mariadb", "mysql")


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.not_quick("shows it on a real store")) for name in SQL])
def behind(request: pytest.FixtureRequest, make_store: Callable[..., Store]) -> Iterator[tuple[Any, TcpProxy]]:
    """A provider with an open connection, and the proxy in front of its store."""
    store = make_store(request.param)
    with TcpProxy(store.addresses[0]) as proxy, store.provider([proxy.address]) as provider:
        provider.record("warm")
        yield provider, proxy


@pytest.fixture
def name() -> str:
    return f"twice-{uuid4().hex[:8]}"


@pytest.mark.parametrize("operation", ["acquire", "take_over"])
def test_i6_an_acquire_that_comes_twice_does_not_cut_an_extended_lease(
    behind: tuple[Any, TcpProxy], operation: str, name: str
) -> None:
    """Sent again after a broken connection. The first copy, still under way, is carried out long after."""
    provider, proxy = behind
    proxy.hold(name, skip=1 if operation == "take_over" else 0)  # a take-over reads the record first
    lease = getattr(provider, operation)(LockRequest(name, "1h"))
    assert proxy.holds
    token = lease.fencing_token
    assert provider.extend(lease, "10h")
    proxy.deliver()
    record = provider.record(name)
    assert record.remaining > timedelta(hours=9)
    assert record.fencing_token == token
    assert lease.trusted_for() < record.remaining
    assert provider.release(lease) is True


@pytest.mark.parametrize("received_first", ["shorter", "longer"])
def test_i6_of_two_extensions_at_once_the_shorter_counts(received_first: str) -> None:
    """The store did the shorter extension last. The replies do not show this."""
    clock = FakeClock()
    lease = Claim(LockRequest("job", "1m"), clock).granted(1)
    shorter, longer = lease._begin_extension("1m"), lease._begin_extension("10m")
    for extension in (shorter, longer) if received_first == "shorter" else (longer, shorter):
        extension.granted()
    assert lease.trusted_for() <= timedelta(minutes=1)
    lease._begin_extension("10m").granted()
    assert lease.trusted_for() > timedelta(minutes=9), "nothing is in doubt any more"


def test_i6_extensions_one_after_the_other_are_trusted() -> None:
    clock = FakeClock()
    provider = InMemoryLockProvider(clock=clock)
    lease = acquired(provider, "job")
    for length in ("10m", "1m", "20m"):
        assert provider.extend(lease, length) is lease
    assert lease.trusted_for() > timedelta(minutes=19)
