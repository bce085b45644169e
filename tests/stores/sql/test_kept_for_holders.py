"""Acquires that wait in the database leave a connection for holders."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from sqlalchemy import text

from shedlock_py import LockRequest
from shedlock_py.providers.sqlalchemy.sql_clients import POOL_SIZE, RESERVED
from tests.stores.sql.stores import Store, drivers_of, on
from tests.support.locks import acquired
from tests.support.polling import wait_until

POSTGRES = drivers_of("postgres")


@contextmanager
def row_locked(store: Store, name: str) -> Iterator[None]:
    """Lock the row in another session's transaction."""
    with store.connect() as connection:
        connection.execute(text("BEGIN"))
        connection.execute(text("SELECT 1 FROM shedlock WHERE name = :name FOR UPDATE"), {"name": name})
        try:
            yield
        finally:
            connection.execute(text("ROLLBACK"))


@on(POSTGRES)
def test_a_heartbeat_does_not_wait_behind_acquires(driver: str, store: Store, name: str) -> None:
    """Five acquires of one provider had taken its five connections until their time limit."""
    provider: Any = store.provider(timeout="60s")
    busy = f"busy-{uuid4().hex[:8]}"
    provider.release(acquired(provider, busy))
    lease, unused = acquired(provider, name), acquired(provider, f"{name}-unused")

    def number_waiting() -> int:
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        return int(store.query(f"{sessions} AND wait_event_type = 'Lock'"))

    everybody = 30 if store.is_async else 8  # a task for each, on an async provider's event loop
    with ThreadPoolExecutor(everybody) as pool:
        with row_locked(store, busy):
            attempts = [pool.submit(provider.acquire, LockRequest(busy, "1m")) for _ in range(everybody)]
            wait_until(lambda: number_waiting() >= POOL_SIZE - RESERVED, what="acquires that wait for the row")
            for _ in range(20):
                assert provider.extend(lease, "1m")
            assert provider.undo(unused)
            assert provider.release(lease)
            assert not any(attempt.done() for attempt in attempts), "it waited behind acquires"
            assert number_waiting() == POOL_SIZE - RESERVED
        assert sum(attempt.result(30) is not None for attempt in attempts) == 1
