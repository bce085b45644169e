"""Connections of our own that wait for the next statement, in front of SQLAlchemy's pool."""

import sys
import threading
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import event

from shedlock_py import LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.providers.sqlalchemy.engines import watchdog
from tests.services.forks import in_child
from tests.services.polling import wait_until
from tests.services.proxy import TcpProxy
from tests.sql.stores import SYNC_DRIVERS, Store, acquired

pytestmark = pytest.mark.parametrize("driver", SYNC_DRIVERS)


def taken_from_the_pool(provider: LockProvider) -> list[object]:
    taken: list[object] = []
    shell: Any = provider
    event.listen(shell._engine, "checkout", lambda *what: taken.append(what[1]))
    return taken


def test_the_pool_is_asked_once(store: Store, name: str) -> None:
    provider = store.provider()
    taken = taken_from_the_pool(provider)
    for _ in range(10):
        lease = acquired(provider, name)
        assert provider.acquire(LockRequest(name, "1m")) is None
        assert provider.release(lease)
    assert len(taken) <= 1


def test_a_users_pool_is_asked_each_time_and_gets_its_connection_back(store: Store, name: str) -> None:
    provider = store.provider_of_engine(pool_size=1, max_overflow=0)
    taken = taken_from_the_pool(provider)
    shell: Any = provider
    for number in range(1, 4):
        provider.record(name)
        assert len(taken) == number
        assert shell._engine.pool.checkedout() == 0


def test_closing_ends_them(store: Store, proxy: TcpProxy, name: str) -> None:
    provider: Any = store.provider(proxy.address)
    barrier = threading.Barrier(3)

    def use() -> None:
        barrier.wait()
        provider.record(name)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert proxy.open_connections >= 1
    provider.close()
    wait_until(lambda: proxy.open_connections == 0, what="all connections closed")
    provider.record(name)  # it opens new ones
    provider.close()
    wait_until(lambda: proxy.open_connections == 0, what="these, too")


def test_who_waits_at_the_pool_gets_one(store: Store, name: str) -> None:
    """Six at once, five connections: the sixth must not wait in vain while they lie idle here."""
    provider: Any = store.provider()
    connections = [provider._connections.take() for _ in range(5)]
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(provider.record(name)))
    waiting.start()
    wait_until(lambda: provider._connections._idle._waiting == 1, what="one who waits")
    for connection in connections:
        provider._connections._give_back(connection)
    waiting.join(timeout=4)  # the pool's own patience is 5 s
    assert found == [None]
    assert provider._connections._idle._waiting == 0
    provider.close()


def test_one_that_could_not_connect_waits_no_more(store: Store, proxy: TcpProxy, name: str) -> None:
    """Else none would ever be kept again."""
    provider: Any = store.provider(proxy.address)
    proxy.refuse()
    with pytest.raises(ProviderUnreachable):
        provider.record(name)
    proxy.accept()
    taken = taken_from_the_pool(provider)
    for _ in range(3):
        provider.record(name)
    assert len(taken) == 1


def test_a_child_leaves_them_alone(store: Store, name: str) -> None:
    provider: Any = store.provider()
    lease = acquired(provider, name)
    [idle] = provider._connections._idle.connections

    def child() -> None:
        # At once: two threads of the child may ask at the same time.
        assert provider._connections._idle.connections == []
        assert provider.acquire(LockRequest(name, "1m")) is None
        [own] = provider._connections._idle.connections
        assert own is not idle
        del own
        provider.close()

    in_child(child)
    [still] = provider._connections._idle.connections
    assert still is idle
    assert provider.release(lease)


def test_closing_while_one_is_in_use(store: Store, proxy: TcpProxy, name: str) -> None:
    provider: Any = store.provider(proxy.address)
    connection = provider._connections.take()
    provider.close()
    provider._connections._give_back(connection)
    assert provider._connections._idle.connections == []
    wait_until(lambda: proxy.open_connections == 0, what="it is closed, too")


def test_a_signal_handler_asks_in_the_middle(store: Store, name: str) -> None:
    """Wherever the thread is: it must not wait for itself."""
    provider: Any = store.provider()
    acquired(provider, name)
    for mutex in (watchdog._mutex, provider._connections._idle._mutex):
        with mutex:
            assert mutex.acquire(blocking=False)
            mutex.release()
    with watchdog._mutex, provider._connections._idle._mutex:
        assert provider.acquire(LockRequest(name, "1m")) is None


@pytest.mark.parametrize("refused_before", [1, 3], ids=["once", "who polls"])
def test_how_many_functions_a_skip_calls(refused_before: int, store: Store, name: str) -> None:
    """Of ours and SQLAlchemy's: a guard against relapse that does not depend on how fast the machine is."""
    provider = store.provider()
    request = LockRequest(name, "1m")
    lease = acquired(provider, name)
    for _ in range(refused_before):
        assert provider.acquire(request) is None
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and ("shedlock_py" in frame.f_code.co_filename or "sqlalchemy" in frame.f_code.co_filename):
            called.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        skipped = provider.acquire(request)
    finally:
        sys.setprofile(None)
    assert skipped is None
    assert 10 < len(called) <= 34, called
    assert provider.release(lease)
