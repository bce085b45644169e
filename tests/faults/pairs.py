"""A primary with a standby, and what leads clients to whichever of them is in charge.

The standby is fed through a proxy, so that it can be kept behind; clients come through another, which the fail-over
turns to the standby. After it the standby is the primary, and gets a standby of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
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
from tests.support.servers import PASSWORD, USER, PostgresServer, ServerProcess

Member = TypeVar("Member", bound=ServerProcess)


class Standby(ABC, Generic[Member]):
    """A server that follows another, and its link to it."""

    def __init__(self, primary: Member, stack: ExitStack) -> None:
        self.link = stack.enter_context(TcpProxy(primary.address))
        self.server = self._start(stack)

    @abstractmethod
    def _start(self, stack: ExitStack) -> Member: ...


class Pair(ABC, Generic[Member]):
    """Usable as a context manager. ``address`` is where clients always find the one in charge."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.primary = self._first(self._stack)
        self._front = self._stack.enter_context(TcpProxy(self.primary.address))
        self.standbys: list[Standby[Member]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def address(self) -> Address:
        return self._front.address

    @abstractmethod
    def _first(self, stack: ExitStack) -> Member: ...

    @abstractmethod
    def follow(self, *, is_synchronous: bool = False) -> Standby[Member]:
        """One more standby, which has everything that the primary has."""

    @abstractmethod
    def _promote(self, standby: Member) -> None:
        """Until it takes writes."""

    def fail_over(self, standby: Standby[Member]) -> None:
        """The primary dies by kill -9; what the standby has not heard by then it never hears."""
        self.primary.kill()
        self.split(standby).close()

    def split(self, standby: Standby[Member]) -> Member:
        """The standby is promoted, and clients of :attr:`address` are led to it; the old primary, which goes on
        answering whoever comes to it directly. Close it.
        """
        standby.link.refuse()
        standby.link.cut()
        self._promote(standby.server)
        old, self.primary = self.primary, standby.server
        for other in self.standbys:
            if other is not standby:
                other.server.close()
        self.standbys.clear()
        self._front.retarget(self.primary.address)
        self._front.cut()
        return old


# PostgreSQL


class PostgresStandbyServer(PostgresServer):
    programs = ("pg_basebackup", "postgres")

    def __init__(self, link: Address) -> None:
        super().__init__()
        self._link = link

    def create_data(self) -> None:
        host, port = self._link
        self._run(
            self._programs["pg_basebackup"], f"--pgdata={self.data}", "--write-recovery-conf", "--checkpoint=fast",
            "--wal-method=stream", "--no-sync", "--no-password",
            f"--dbname=host={host} port={port} user={USER} password={PASSWORD} application_name=standby",
        )  # fmt: skip
        # A copy of what the primary was told.
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("synchronous_standby_names = ''\n")


class PostgresStandby(Standby[PostgresServer]):
    def _start(self, stack: ExitStack) -> PostgresServer:
        return stack.enter_context(private_server("postgres", lambda: PostgresStandbyServer(self.link.address)))


class PostgresPair(Pair[PostgresServer]):
    def _first(self, stack: ExitStack) -> PostgresServer:
        return stack.enter_context(private_server("postgres", PostgresServer))

    def follow(self, *, is_synchronous: bool = False) -> PostgresStandby:
        standby = PostgresStandby(self.primary, self._stack)
        self.standbys.append(standby)
        if is_synchronous:
            self._ask("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            self._ask("SELECT pg_reload_conf()")
        state = "sync" if is_synchronous else "async"
        query = f"SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = '{state}'"
        wait_until(lambda: self._ask(query), timeout=TIMEOUT, what=f"a standby that is {state}")
        return standby

    def cancel_waiting(self, how: str = "cancel") -> int:
        """``pg_cancel_backend`` or ``pg_terminate_backend`` to each commit that waits for the standby; how many."""
        return int(
            self._ask(
                f"SELECT count(pg_{how}_backend(pid)) FROM pg_stat_activity "
                "WHERE wait_event = 'SyncRep' AND pid <> pg_backend_pid()"
            )
        )

    def _promote(self, standby: PostgresServer) -> None:
        with standby.connect() as connection:
            connection.execute(text(f"SELECT pg_promote(true, {TIMEOUT:.0f})"))
        wait_until(lambda: not _is_in_recovery(standby), timeout=TIMEOUT, what="the standby promoted")

    def _ask(self, statement: str) -> Any:
        return _ask(self.primary, statement)


def waiting_for_standby(primary: PostgresServer) -> int:
    """How many commits wait for the standby to confirm them."""
    return int(_ask(primary, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))


def _ask(server: PostgresServer, statement: str) -> Any:
    with server.connect() as connection:
        result = connection.execute(text(statement))
        return result.scalar_one() if result.returns_rows else None


def _is_in_recovery(server: PostgresServer) -> bool:
    with suppress(DBAPIError), server.connect() as connection:
        return bool(connection.execute(text("SELECT pg_is_in_recovery()")).scalar_one())
    return True


# Redis


class RedisReplica(Standby[RedisServer]):
    def _start(self, stack: ExitStack) -> RedisServer:
        host, port = self.link.address
        return stack.enter_context(private_server("redis", lambda: RedisServer(config={"replicaof": f"{host} {port}"})))


class RedisPair(Pair[RedisServer]):
    def _first(self, stack: ExitStack) -> RedisServer:
        return stack.enter_context(private_server("redis", RedisServer))

    def follow(self, *, is_synchronous: bool = False) -> RedisReplica:
        replica = RedisReplica(self.primary, self._stack)
        self.standbys.append(replica)
        wait_until(lambda: _is_linked(replica.server), timeout=TIMEOUT, what="a replica that follows")
        return replica

    def _promote(self, standby: RedisServer) -> None:
        with standby.client() as client:
            client.execute_command("REPLICAOF", "NO", "ONE")  # type: ignore[no-untyped-call]  # redis-py gives it no types


def _is_linked(replica: RedisServer) -> bool:
    with suppress(redis.RedisError), replica.client() as client:
        return bool(client.info("replication").get("master_link_status") == "up")
    return False
