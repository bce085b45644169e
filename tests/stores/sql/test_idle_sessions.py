"""Idle sessions: a provider closes its own. Sessions that MySQL and MariaDB close or kill cause no error."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.exc import OperationalError

from shedlock_py import LockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.sql.stores import DATABASE, KINDS, Store, drivers_of, on, on_mysql_and_mariadb
from tests.support.locks import acquired
from tests.support.polling import wait_until

SESSIONS = 4
IN_DATABASE = f"information_schema.processlist WHERE db = '{DATABASE}' AND id <> CONNECTION_ID()"
NO_SUCH_THREAD = 1094
"""MySQL's error for an unknown session."""
GOOD_BYE = b"\x01\x00\x00\x00\x01"
"""The packet COM_QUIT."""


def number_of_sessions(store: Store) -> int:
    return int(store.query(f"SELECT count(*) FROM {IN_DATABASE}"))


def kill_all(store: Store) -> None:
    while session := store.query(f"SELECT min(id) FROM {IN_DATABASE}"):
        try:
            store.execute(f"KILL {session}")
        except OperationalError as error:
            if error.orig is None or error.orig.args[0] != NO_SUCH_THREAD:
                raise  # it may have ended since the query found it
        wait_until(lambda session=session: not store.query(f"SELECT count(*) FROM {IN_DATABASE} AND id = {session}"))  # type: ignore[misc]  # bound


def open_sessions(provider: LockProvider, store: Store, proxy: TcpProxy, name: str) -> None:
    """Open more sessions than a retry uses, so that a retry meets another closed session."""
    provider.record("warm")
    with ThreadPoolExecutor(SESSIONS) as pool:
        proxy.stall()
        acquiring = [pool.submit(acquired, provider, f"{name}-{number}") for number in range(SESSIONS)]
        wait_until(lambda: proxy.open_connections >= SESSIONS, what="sessions of the pool")
        proxy.resume()
    for future in acquiring:
        assert provider.release(future.result())


@on(drivers_of("postgres", "mysql", "mariadb"), kinds=["url"])
def test_an_idle_session_is_closed_so_that_a_serverless_database_can_sleep(
    kind: str, store: Store, proxy: TcpProxy, name: str
) -> None:
    provider = store.provider_of(kind, url=f"{store.url(proxy.address)}?idle_timeout=200ms")
    for _ in range(2):
        assert provider.release(acquired(provider, name))
        wait_until(lambda: proxy.open_connections == 0, what="the end of the session")


@on(drivers_of("mysql", "mariadb"), kinds=KINDS)
@pytest.mark.parametrize("why", ["idle", "killed"])
def test_i5_sessions_that_the_server_closed_are_not_noticed(
    why: str, kind: str, store: Store, proxy: TcpProxy, name: str
) -> None:
    wait_until(lambda: number_of_sessions(store) == 0, what="the end of the sessions of other tests")
    url = store.url(proxy.address) + ("?init_command=SET SESSION wait_timeout = 1" if why == "idle" else "")
    provider = store.provider_of(kind, url=url)
    open_sessions(provider, store, proxy, name)
    if why == "killed":
        kill_all(store)
    wait_until(lambda: number_of_sessions(store) == 0, what="the end of the sessions")
    lease = acquired(provider, name)
    assert provider.extend(lease, "10m") is lease
    assert provider.release(lease) is True


class Resets:
    """Connections on uvloop after a reset: a write raises.

    Good-bye packets do not raise: SQLAlchemy would log the error, and aiomysql would warn.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._used: list[asyncio.StreamWriter] = []
        self._reset: list[asyncio.StreamWriter] = []
        self._write = asyncio.StreamWriter.write
        monkeypatch.setattr(asyncio.StreamWriter, "write", lambda writer, data: self.write(writer, data))

    def write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if writer in self._reset and data != GOOD_BYE:
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")
        self._used.append(writer)
        self._write(writer, data)

    def reset(self) -> None:
        """Reset all connections used so far."""
        assert self._used
        self._reset += self._used
        self._used.clear()


@on(on_mysql_and_mariadb("aiomysql"), kinds=KINDS)
def test_i5_connections_that_were_reset_on_uvloop(
    kind: str, store: Store, proxy: TcpProxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resets = Resets(monkeypatch)
    url = store.url(proxy.address)
    provider = store.provider_of(kind, url=url)
    open_sessions(provider, store, proxy, name)
    resets.reset()
    lease = acquired(provider, name)
    resets.reset()
    assert provider.extend(lease, "10m") is lease
    resets.reset()
    assert provider.release(lease) is True
