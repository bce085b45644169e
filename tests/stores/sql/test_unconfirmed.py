"""A commit that no synchronous standby confirmed is not a grant: a failover would lose it."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from shedlock_py import LockRequest, ProviderUnreachable
from tests.stores.sql.stores import DRIVERS, KINDS, Application, Store, on
from tests.support.locks import acquired, record_of
from tests.support.polling import wait_until

POSTGRES_DRIVERS = [driver for driver, server in DRIVERS.items() if server == "postgres"]


@pytest.fixture
def _no_standby_confirms(store: Store) -> Iterator[None]:
    """Make commits wait for a missing standby, while a thread keeps cancelling them."""
    done = threading.Event()

    def cancel_waiting() -> None:
        with store.connect() as connection:
            while not done.wait(0.05):
                connection.execute(
                    text("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
                )

    def standbys(names: str) -> None:
        store.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'", "SELECT pg_reload_conf()")
        wait_until(lambda: store.query("SHOW synchronous_standby_names") == names, what="the new setting")

    def is_waited_for() -> bool:
        """Commits wait only after the checkpointer has read the new setting."""
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


@on(POSTGRES_DRIVERS, kinds=KINDS)
@pytest.mark.usefixtures("_no_standby_confirms")
def test_i1_an_unconfirmed_acquire_is_an_error_and_undone(store: Store, kind: str, name: str) -> None:
    provider = store.provider_of(kind)
    for _ in range(2):  # on a new connection, and on a used connection
        with pytest.raises(ProviderUnreachable, match="no synchronous standby has confirmed it"):
            acquired(provider, name)
        assert not record_of(provider, name).is_held


@on(POSTGRES_DRIVERS)
def test_a_warning_of_the_application_does_no_harm(driver: str, store: Store, name: str) -> None:
    application = Application(store, pool_size=1, max_overflow=0)
    application.provider.record("warm")
    application.run(lambda connection: connection.execute(text("DO $$BEGIN RAISE WARNING 'disk is full'; END$$")))
    assert application.provider.acquire(LockRequest(name, "1m"))


@on(POSTGRES_DRIVERS)
@pytest.mark.parametrize("level", ["NOTICE", "WARNING"])
def test_what_a_trigger_says_does_no_harm(store: Store, level: str, name: str) -> None:
    """A trigger's warning is not about a standby."""
    provider = store.provider()
    with store.table() as trigger:
        store.execute(
            f"CREATE FUNCTION {trigger}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$BEGIN RAISE {level} 'the lock was taken'; RETURN NEW; END$$",
            f"CREATE TRIGGER {trigger} AFTER INSERT OR UPDATE ON shedlock FOR EACH ROW EXECUTE FUNCTION {trigger}()",
        )
        try:
            assert provider.release(acquired(provider, name))
        finally:
            store.execute(f"DROP TRIGGER {trigger} ON shedlock", f"DROP FUNCTION {trigger}()")
