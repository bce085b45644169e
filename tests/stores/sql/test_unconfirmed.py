"""A commit that no synchronous standby confirmed is no grant: after a fail-over it would never have been."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from shedlock_py import LockRequest, ProviderUnreachable
from shedlock_py.providers.sqlalchemy import AsyncSqlAlchemyLockProvider, SqlAlchemyLockProvider
from tests.stores.sql.stores import DRIVERS, Store, acquired, record_of
from tests.support.polling import wait_until

POSTGRES_DRIVERS = [driver for driver, server in DRIVERS.items() if server == "postgres"]


@pytest.fixture
def _no_standby_answers(store: Store) -> Iterator[None]:
    """Commits wait for a standby that does not exist, and somebody keeps cancelling them."""
    done = threading.Event()

    def cancel_waiting() -> None:
        with store.connect() as connection:
            while not done.wait(0.05):
                connection.execute(
                    text("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
                )

    def standbys(names: str) -> None:
        store.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'", "SELECT pg_reload_conf()")
        wait_until(lambda: store.ask("SHOW synchronous_standby_names") == names, what="the new setting")

    def is_waited_for() -> bool:
        """Commits wait from the moment that the checkpointer, too, has read the new setting."""
        warnings: list[object] = []
        with store.connect() as connection:
            driver: Any = connection.connection.driver_connection
            driver.add_notice_handler(warnings.append)
            connection.execute(text("COMMENT ON TABLE shedlock IS 'written to'"))
        return bool(warnings)

    canceller = threading.Thread(target=cancel_waiting)
    canceller.start()
    try:
        standbys("nobody")
        wait_until(is_waited_for, what="a commit that waits for a standby")
        yield
    finally:
        standbys("")
        done.set()
        canceller.join()


@pytest.mark.parametrize("driver", POSTGRES_DRIVERS)
@pytest.mark.parametrize("kind", ["url", "engine"])
@pytest.mark.usefixtures("_no_standby_answers")
def test_i1_an_unconfirmed_acquire_is_an_error_and_undone(store: Store, kind: str, name: str) -> None:
    provider = store.provider() if kind == "url" else store.provider_of_engine()
    for _ in range(2):  # on a new connection, and on a used one
        with pytest.raises(ProviderUnreachable, match="no synchronous standby has confirmed it"):
            acquired(provider, name)
        assert not record_of(provider, name).is_held


@pytest.mark.parametrize("driver", POSTGRES_DRIVERS)
def test_a_warning_of_the_application_is_not_about_us(driver: str, store: Store, name: str) -> None:
    warn = text("DO $$BEGIN RAISE WARNING 'disk space is low'; END$$")
    if not store.is_async:
        engine = create_engine(store.url(), pool_size=1, max_overflow=0)
        store.stack.callback(engine.dispose)
        provider = SqlAlchemyLockProvider(engine)
        provider.record("warm")
        with engine.begin() as connection:
            connection.execute(warn)
        assert provider.acquire(LockRequest(name, "1m"))
        return

    async def main() -> None:
        engine = create_async_engine(store.url(), pool_size=1, max_overflow=0)
        provider = AsyncSqlAlchemyLockProvider(engine)
        await provider.record("warm")
        async with engine.begin() as connection:
            await connection.execute(warn)
        assert await provider.acquire(LockRequest(name, "1m"))
        await engine.dispose()

    asyncio.run(main())


@pytest.mark.parametrize("driver", POSTGRES_DRIVERS)
@pytest.mark.parametrize("level", ["NOTICE", "WARNING"])
def test_what_a_trigger_says_does_no_harm(store: Store, level: str, name: str) -> None:
    """A trigger that warns is not a standby that has not confirmed."""
    provider = store.provider()
    with store.table() as trigger:
        store.execute(
            f"CREATE FUNCTION {trigger}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$BEGIN RAISE {level} 'somebody took a lock'; RETURN NEW; END$$",
            f"CREATE TRIGGER {trigger} AFTER INSERT OR UPDATE ON shedlock FOR EACH ROW EXECUTE FUNCTION {trigger}()",
        )
        try:
            assert provider.release(acquired(provider, name))
        finally:
            store.execute(f"DROP TRIGGER {trigger} ON shedlock", f"DROP FUNCTION {trigger}()")
