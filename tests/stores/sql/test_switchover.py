"""The old primary turns read-only, the name moves to the new primary, and open sessions stay."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest
from sqlalchemy import text

from shedlock_py import LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.sql.stores import DATABASE, DRIVERS, ONE_EACH, Store, marks_of
from tests.support.availability import private_server
from tests.support.database import DatabaseServer
from tests.support.locks import acquired
from tests.support.polling import wait_until
from tests.support.servers import MariaDbServer, MySqlServer, PostgresServer

USER, PASSWORD = "plain_user", "plain"
"""MySQL and MariaDB let administrators write to a read-only server."""


@pytest.fixture(scope="module")
def new_postgres() -> Iterator[DatabaseServer]:
    with private_server("postgres", PostgresServer) as server:
        yield server


@pytest.fixture(scope="module")
def new_mariadb() -> Iterator[DatabaseServer]:
    with private_server("mariadb", MariaDbServer) as server:
        yield server


@pytest.fixture(scope="module")
def new_mysql() -> Iterator[DatabaseServer]:
    with private_server("mysql", MySqlServer) as server:
        yield server


class Switchover:
    """Two servers with the same table, and a name that leads to one of the servers."""

    def __init__(self, old: Store, new: Store, stack: ExitStack) -> None:
        self.old, self.new = old, new
        for store in (old, new):
            if store is new:
                store.server.drop_database(DATABASE)
                store.server.create_database(DATABASE)
                store.provider(timeout="60s").create_schema()
            if not store.is_postgres:
                store.execute(
                    f"DROP USER IF EXISTS {USER}@'%'",
                    f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'",
                    f"GRANT SELECT, INSERT, UPDATE, DELETE ON {DATABASE}.* TO {USER}@'%'",
                )
        self.proxy = stack.enter_context(TcpProxy(old.server.address))
        self.url = old.url(self.proxy.address)
        if not old.is_postgres:
            credentials = self.url.partition("://")[2].partition("@")[0]
            self.url = self.url.replace(credentials, f"{USER}:{PASSWORD}", 1)

    def turn_read_only(self, is_read_only: bool = True) -> None:
        value = "on" if is_read_only else "off"
        if self.old.is_postgres:
            self.old.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}", "SELECT pg_reload_conf()")
            wait_until(lambda: self.old.query("SHOW default_transaction_read_only") == value)
        else:
            with self.old.server.connect() as connection:
                connection.execute(text(f"SET GLOBAL read_only = {int(is_read_only)}"))

    def move(self) -> None:
        self.proxy.retarget(self.new.server.address)


@pytest.fixture
def switchover(driver: str, request: pytest.FixtureRequest) -> Iterator[Switchover]:
    product = DRIVERS[driver]
    old = Store(request.getfixturevalue(product), driver)
    new = Store(request.getfixturevalue(f"new_{product}"), driver)
    with ExitStack() as stack:
        stack.enter_context(old.stack)
        stack.enter_context(new.stack)
        switchover = Switchover(old, new, stack)
        try:
            yield switchover
        finally:
            switchover.turn_read_only(False)


def with_two_servers(drivers: Sequence[str]) -> pytest.MarkDecorator:
    """The servers of MySQL and MariaDB take seconds to start."""
    slow = pytest.mark.slow("a second server of MySQL or MariaDB")
    return pytest.mark.parametrize(
        "driver",
        [
            pytest.param(driver, marks=marks_of(driver, drivers) + [slow] * (DRIVERS[driver] != "postgres"))
            for driver in drivers
        ],
    )


def warm(provider: LockProvider, name: str) -> None:
    for number in range(5):
        assert provider.release(acquired(provider, f"{name}-{number}"))


@with_two_servers(list(DRIVERS))
def test_i5_a_provider_from_a_url_comes_back(switchover: Switchover, name: str) -> None:
    provider = switchover.old.provider(url=switchover.url)
    warm(provider, name)
    switchover.turn_read_only()
    with pytest.raises(ProviderUnreachable, match=r"(?i)read.only"):
        provider.acquire(LockRequest(name, "1m"))
    switchover.move()
    lease = provider.acquire(LockRequest(name, "1m"))
    assert lease is not None, "the connection that said so was given up, so the next one leads to the new primary"
    assert switchover.new.query("SELECT count(*) FROM shedlock WHERE name = :name", name=name) == 1
    assert provider.release(lease)


@with_two_servers(ONE_EACH)
def test_i5_one_error_however_many_connections_are_open(switchover: Switchover, name: str) -> None:
    """The provider drops the idle connections with the failed connection: they are as old."""
    provider = switchover.old.provider(url=switchover.url, timeout="60s")
    start = threading.Barrier(5)

    def use(number: int) -> None:
        start.wait()
        for _ in range(20):
            assert provider.release(acquired(provider, f"{name}-{number}"))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert switchover.proxy.open_connections > 1
    switchover.turn_read_only()
    switchover.move()
    with pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(name, "1m"))
    for number in range(8):
        assert provider.release(acquired(provider, f"{name}-{number}"))


@with_two_servers([*ONE_EACH, "postgresql+asyncpg"])
def test_a_users_engine_loses_only_that_connection(switchover: Switchover, name: str) -> None:
    provider = switchover.old.provider_of_engine(url=switchover.url, pool_size=1, max_overflow=0)
    warm(provider, name)
    switchover.turn_read_only()
    switchover.move()
    with pytest.raises(ProviderUnreachable):
        provider.acquire(LockRequest(name, "1m"))
    assert provider.release(acquired(provider, name))
