"""Round trips of one operation in the steady state. DESIGN §5 has the table."""

from datetime import UTC, datetime, timedelta

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderError
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.sql.stores import Store
from tests.support.locks import acquired

WARM_UP = 2
WARM_UP_OF_ENGINES = 8  # psycopg prepares a statement at its sixth use, which takes another round trip
ROUNDS = 4


class Costs(dict[str, set[int]]):
    """The round trips of each operation. A set with one number shows that the number is constant."""

    def __init__(self, proxy: TcpProxy) -> None:
        super().__init__()
        self._proxy = proxy
        self.is_warm = False

    def note(self, operation: str) -> None:
        if self.is_warm:
            self.setdefault(operation, set()).add(self._proxy.round_trips)
        self._proxy.reset()


def costs(provider: LockProvider, proxy: TcpProxy, name: str, warm_up: int = WARM_UP) -> Costs:
    costs = Costs(proxy)
    for i in range(warm_up + ROUNDS):
        costs.is_warm = i >= warm_up
        lock = name if i % 2 else f"{name}-{i}"  # a record that exists, and a missing record
        proxy.reset()
        lease = acquired(provider, lock)
        costs.note("acquire")
        assert provider.acquire(LockRequest(lock, "1m")) is None
        costs.note("skip")
        assert provider.extend(lease, "2m") is lease
        costs.note("extend")
        assert provider.release(lease)
        costs.note("release")
    return costs


OPERATIONS = ("acquire", "skip", "extend", "release")


def test_a_provider_from_a_url_takes_one(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address)
    assert costs(provider, proxy, name) == {operation: {1} for operation in OPERATIONS}


def test_a_provider_of_a_users_engine_takes_few(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider_of_engine(proxy.address)
    warm_up = WARM_UP_OF_ENGINES if store.is_postgres else WARM_UP
    expected = 1 if store.is_postgres else 3  # MySQL: the statement, COMMIT, and the pool's ROLLBACK
    assert costs(provider, proxy, name, warm_up) == {operation: {expected} for operation in OPERATIONS}


def test_with_fire_times_it_takes_one_as_well(store: Store, proxy: TcpProxy, name: str) -> None:
    provider, costs = store.provider(proxy.address), Costs(proxy)
    too_late = datetime.now(UTC) + timedelta(days=1)
    for i in range(WARM_UP + ROUNDS):
        costs.is_warm = i >= WARM_UP
        lock = name if i % 2 else f"{name}-{i}"
        fire_time = datetime(2024, 5, 1, tzinfo=UTC) + timedelta(seconds=i)
        proxy.reset()
        lease = acquired(provider, lock, fire_time=fire_time)
        costs.note("acquire")
        assert provider.release(lease)
        costs.note("release")
        assert provider.acquire(LockRequest(lock, "1m", fire_time=fire_time)) is None
        costs.note("already ran")
        with pytest.raises(ProviderError, match="later than the store's clock"):
            provider.acquire(LockRequest(lock, "1m", fire_time=too_late))
        costs.note("too late")
        assert provider.undo(lease) is False, "it was released"  # type: ignore[attr-defined]  # the kit's
        costs.note("undo")
    assert costs == {"acquire": {1}, "release": {1}, "already ran": {1}, "too late": {1}, "undo": {0}}
