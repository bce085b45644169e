"""MySQL and MariaDB close sessions that are idle (``wait_timeout``) or killed: the next operation does not notice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.exc import OperationalError

from shedlock_py import LockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.sql.stores import DATABASE, Store, acquired, drivers_of
from tests.support.polling import wait_until

pytestmark = pytest.mark.parametrize("driver", drivers_of("mariadb", "mysql"))

SESSIONS = 4
IN_DATABASE = f"information_schema.processlist WHERE db = '{DATABASE}' AND id <> CONNECTION_ID()"
NO_SUCH_THREAD = 1094
"""MySQL's error for a session that is not there."""


def number_of_sessions(store: Store) -> int:
    return int(store.query(f"SELECT count(*) FROM {IN_DATABASE}"))


def kill_all(store: Store) -> None:
    while session := store.query(f"SELECT min(id) FROM {IN_DATABASE}"):
        try:
            store.execute(f"KILL {session}")
        except OperationalError as error:
            if error.orig is None or error.orig.args[0] != NO_SUCH_THREAD:
                raise  # it may have ended by itself since it was found
        wait_until(lambda session=session: not store.query(f"SELECT count(*) FROM {IN_DATABASE} AND id = {session}"))  # type: ignore[misc]  # bound


def open_sessions(provider: LockProvider, store: Store, proxy: TcpProxy, name: str) -> None:
    """So many in the pool of the provider that a retry finds another one that was closed."""
    provider.record("warm")
    with ThreadPoolExecutor(SESSIONS) as pool:
        proxy.stall()
        acquiring = [pool.submit(acquired, provider, f"{name}-{number}") for number in range(SESSIONS)]
        wait_until(lambda: proxy.open_connections >= SESSIONS, what="sessions of the pool")
        proxy.resume()
    for future in acquiring:
        assert provider.release(future.result())


@pytest.mark.parametrize("kind", ["url", "engine"])
@pytest.mark.parametrize("why", ["idle", "killed"])
def test_i5_sessions_that_the_server_closed(why: str, kind: str, store: Store, proxy: TcpProxy, name: str) -> None:
    wait_until(lambda: number_of_sessions(store) == 0, what="the end of the sessions of other tests")
    url = store.url(proxy.address) + ("?init_command=SET SESSION wait_timeout = 1" if why == "idle" else "")
    provider = store.provider(url=url) if kind == "url" else store.provider_of_engine(url=url)
    open_sessions(provider, store, proxy, name)
    if why == "killed":
        kill_all(store)
    wait_until(lambda: number_of_sessions(store) == 0, what="the end of the sessions")
    lease = acquired(provider, name)
    assert provider.extend(lease, "10m") is lease
    assert provider.release(lease) is True
