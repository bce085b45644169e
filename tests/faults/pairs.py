"""A primary with a standby, and proxies that lead clients to the current primary.

The standby replicates through a proxy, so that a test can keep it behind. Clients come through another proxy, which the
fail-over turns to the standby. Then the standby is the primary, and gets a standby.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import redis
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from shedlock_py.testing.proxy import TcpProxy
from tests.faults.fleet import TIMEOUT
from tests.support.availability import private_server
from tests.support.database import Address
from tests.support.polling import wait_until
from tests.support.redis import RedisServer
from tests.support.server_process import ServerProcess
from tests.support.servers import PASSWORD, USER, PostgresServer

Member = TypeVar("Member", bound=ServerProcess)


@dataclass
class Standby(Generic[Member]):
    link: TcpProxy
    """Proxy to the server that it follows."""
    server: Member


class Pair(ABC, Generic[Member]):
    """Usable as a context manager. ``address`` always leads clients to the current primary."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.primary = self._server(None)
        self._front = self._stack.enter_context(TcpProxy(self.primary.address))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def address(self) -> Address:
        return self._front.address

    @abstractmethod
    def _server(self, follows: Address | None) -> Member:
        """Start a server, which follows another server if ``follows`` is given."""

    @abstractmethod
    def _promote(self, standby: Member) -> None:
        """Promote the standby, and wait until it accepts writes."""

    def follow(self, *, is_synchronous: bool = False) -> Standby[Member]:
        """Start a standby, and wait until it has all data of the primary."""
        link = self._stack.enter_context(TcpProxy(self.primary.address))
        return Standby(link, self._server(link.address))

    def fail_over(self, standby: Standby[Member]) -> None:
        """Kill the primary with kill -9 and promote the standby. Data that the standby lacks by then are lost."""
        self.primary.kill()
        self.split(standby).close()

    def split(self, standby: Standby[Member]) -> Member:
        """Promote the standby, and lead clients of :attr:`address` to it.

        Returns the old primary, which still replies to clients that connect to it directly. Close it.
        """
        standby.link.refuse()
        standby.link.cut()
        self._promote(standby.server)
        old, self.primary = self.primary, standby.server
        self._front.retarget(self.primary.address)
        self._front.cut()
        return old


class PostgresStandbyServer(PostgresServer):
    programs = ("pg_basebackup", "postgres")

    def __init__(self, link: Address) -> None:
        super().__init__()
        self._link = link

    def create_data(self) -> None:
        host, port = self._link
        self._run(
            *self._programs["pg_basebackup"], f"--pgdata={self.data}", "--write-recovery-conf", "--checkpoint=fast",
            "--wal-method=stream", "--no-sync", "--no-password",
            f"--dbname=host={host} port={port} user={USER} password={PASSWORD} application_name=standby",
        )  # fmt: skip
        # pg_basebackup has copied the settings of the primary.
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("synchronous_standby_names = ''\n")


class PostgresPair(Pair[PostgresServer]):
    def _server(self, follows: Address | None) -> PostgresServer:
        make = PostgresServer if follows is None else lambda: PostgresStandbyServer(follows)
        return self._stack.enter_context(private_server("postgres", make))

    def follow(self, *, is_synchronous: bool = False) -> Standby[PostgresServer]:
        standby = super().follow()
        if is_synchronous:
            _query(self.primary, "ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            _query(self.primary, "SELECT pg_reload_conf()")
        state = "sync" if is_synchronous else "async"
        query = f"SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = '{state}'"
        wait_until(lambda: _query(self.primary, query), timeout=TIMEOUT, what=f"a standby that is {state}")
        return standby

    def cancel_waiting(self, how: str = "cancel") -> int:
        """``pg_cancel_backend`` or ``pg_terminate_backend`` commits that wait for the standby. Return how many."""
        query = (
            f"SELECT count(pg_{how}_backend(pid)) FROM pg_stat_activity "
            "WHERE wait_event = 'SyncRep' AND pid <> pg_backend_pid()"
        )
        return int(_query(self.primary, query))

    def _promote(self, standby: PostgresServer) -> None:
        _query(standby, f"SELECT pg_promote(true, {TIMEOUT:.0f})")
        wait_until(lambda: not _is_in_recovery(standby), timeout=TIMEOUT, what="the standby promoted")


def waiting_for_standby(primary: PostgresServer) -> int:
    return int(_query(primary, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))


def _query(server: PostgresServer, statement: str) -> Any:
    with server.connect() as connection:
        result = connection.execute(text(statement))
        return result.scalar_one() if result.returns_rows else None


def _is_in_recovery(server: PostgresServer) -> bool:
    with suppress(DBAPIError):
        return bool(_query(server, "SELECT pg_is_in_recovery()"))
    return True


class RedisPair(Pair[RedisServer]):
    def _server(self, follows: Address | None) -> RedisServer:
        config = {"replicaof": f"{follows[0]} {follows[1]}"} if follows else {}
        return self._stack.enter_context(private_server("redis", lambda: RedisServer(config=config)))

    def follow(self, *, is_synchronous: bool = False) -> Standby[RedisServer]:
        replica = super().follow()
        wait_until(lambda: _is_linked(replica.server), timeout=TIMEOUT, what="a replica that follows")
        return replica

    def _promote(self, standby: RedisServer) -> None:
        with standby.client() as client:
            client.replicaof("NO", "ONE")


def _is_linked(replica: RedisServer) -> bool:
    with suppress(redis.RedisError), replica.client() as client:
        return bool(client.info("replication").get("master_link_status") == "up")
    return False
