"""The application has used up its pool, so a heartbeat waits for a connection."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import QueuePool, create_engine

from shedlock_py import LeaseLost, ProviderFailed, configure, hold
from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider
from shedlock_py.testing import RecordingListener
from tests.support.polling import wait_until


def test_a_lease_that_is_lost_for_want_of_a_connection_names_the_pool(
    tmp_path: Path,
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/locks.db", poolclass=QueuePool, pool_size=1, max_overflow=0)
    provider = SqlAlchemyLockProvider(engine)
    provider.create_schema()
    assert provider.waits_for is None
    recorded = RecordingListener()
    with ExitStack() as stack:
        stack.enter_context(configure(listeners=[recorded]))
        taken = stack.enter_context(ExitStack())
        with hold("job", lock_at_most_for="900ms", keep_alive=True, provider=provider):
            taken.enter_context(engine.connect())
            wait_until(lambda: recorded.of(LeaseLost), what="the loss")
            taken.close()
    [failed] = recorded.of(ProviderFailed)
    assert failed.operation == "extend"
    assert "s: it waits for a connection of your engine: the pool is used up, or" in str(failed.error)
    assert [lost.reason for lost in recorded.of(LeaseLost)] == ["unreachable"]
    engine.dispose()
