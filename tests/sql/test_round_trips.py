"""What one operation costs on the wire, in the steady state. DESIGN §5 has the table."""

from shedlock_py import LockProvider, LockRequest
from tests.services.proxy import TcpProxy
from tests.sql.stores import Store, acquired

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
