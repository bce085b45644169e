"""What one operation costs on the wire, in the steady state. DESIGN §5 has the table."""

from datetime import UTC, datetime, timedelta

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderError
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.sql.stores import Store, acquired

WARM_UP = 8  # psycopg prepares a statement when it sees it for the sixth time, at a round trip of its own
ROUNDS = 12


def costs(provider: LockProvider, proxy: TcpProxy, name: str) -> dict[str, set[int]]:
    """The round trips of each operation, as a set: the same number each time."""
    counted: dict[str, set[int]] = {}

    def count(operation: str, is_counted: bool) -> None:
        if is_counted:
            counted.setdefault(operation, set()).add(proxy.round_trips)
        proxy.reset()

    for i in range(WARM_UP + ROUNDS):
        is_counted = i >= WARM_UP
        lock = name if i % 2 else f"{name}-{i}"  # a record that exists, and one that does not
        proxy.reset()
        lease = acquired(provider, lock)
        count("acquire", is_counted)
        assert provider.acquire(LockRequest(lock, "1m")) is None
        count("skip", is_counted)
        assert provider.extend(lease, "2m") is lease
        count("extend", is_counted)
        assert provider.release(lease)
        count("release", is_counted)
    return counted


OPERATIONS = ("acquire", "skip", "extend", "release")


def test_a_provider_from_a_url_takes_one(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address)
    assert costs(provider, proxy, name) == {operation: {1} for operation in OPERATIONS}


def test_a_provider_of_a_users_engine_takes_few(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider_of_engine(proxy.address)
    expected = 1 if store.is_postgres else 3  # MySQL: the statement, COMMIT, and the pool's ROLLBACK
    assert costs(provider, proxy, name) == {operation: {expected} for operation in OPERATIONS}


def costs_of_fire_times(provider: LockProvider, proxy: TcpProxy, name: str) -> dict[str, set[int]]:
    counted: dict[str, set[int]] = {}
    too_late = datetime.now(UTC) + timedelta(days=1)
    for i in range(WARM_UP + ROUNDS):
        lock = name if i % 2 else f"{name}-{i}"
        request = LockRequest(lock, "1m", fire_time=datetime(2024, 5, 1, tzinfo=UTC) + timedelta(seconds=i))
        steps = {}
        proxy.reset()
        lease = provider.acquire(request)
        assert lease is not None
        steps["acquire"] = proxy.round_trips
        provider.release(lease)
        for what, skipped in (("already ran", request), ("too late", LockRequest(lock, "1m", fire_time=too_late))):
            proxy.reset()
            if what == "already ran":
                assert provider.acquire(skipped) is None
            else:
                with pytest.raises(ProviderError, match="later than the store's clock"):
                    provider.acquire(skipped)
            steps[what] = proxy.round_trips
        proxy.reset()
        assert provider.undo(lease) is False, "it was released"  # type: ignore[attr-defined]  # the kit's
        steps["undo"] = proxy.round_trips
        if i >= WARM_UP:
            for what, count in steps.items():
                counted.setdefault(what, set()).add(count)
    return counted


def test_with_fire_times_it_takes_one_as_well(store: Store, proxy: TcpProxy, name: str) -> None:
    costs = costs_of_fire_times(store.provider(proxy.address), proxy, name)
    assert costs == {"acquire": {1}, "already ran": {1}, "too late": {1}, "undo": {0}}
