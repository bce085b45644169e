import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from tests.support import servers
from tests.support.availability import database_server
from tests.support.database import DatabaseServer
from tests.support.polling import wait_until
from tests.support.ports import bind_free_port
from tests.support.processes import is_running
from tests.support.servers import PASSWORD, PostgresServer, PrivateServer, ServerError, remove_leftovers

ROOT = Path(__file__).parents[2]
POSTGRES = ["postgresql+psycopg", "postgresql+psycopg2", "postgresql+asyncpg", "postgresql+psycopg_async"]
MARIADB = ["mysql+pymysql", "mysql+mysqldb", "mysql+aiomysql", "mysql+asyncmy", "mariadb+pymysql"]
ASYNC = ("asyncpg", "_async", "aiomysql", "asyncmy")


# A server of its own for each of these tests would tell no more; these stop and start the session's.
@pytest.fixture(params=["postgres", "mariadb"])
def private(request: pytest.FixtureRequest) -> PrivateServer:
    server = request.getfixturevalue(f"{request.param}_server")
    if not isinstance(server, PrivateServer):
        pytest.skip("the environment names a server that is not ours")
    return server


@pytest.fixture
def scratch(private: PrivateServer) -> Iterator[str]:
    """A database with a table of one row."""
    private.create_database("scratch")
    with private.connect("scratch") as connection:
        connection.execute(text("CREATE TABLE t (n INTEGER)"))
        connection.execute(text("INSERT INTO t VALUES (1)"))
    yield "scratch"
    private.start()
    private.drop_database("scratch")


def rows(server: DatabaseServer, database: str) -> int:
    with server.connect(database) as connection:
        return int(connection.execute(text("SELECT count(*) FROM t")).scalar_one())


@pytest.mark.parametrize("driver", POSTGRES)
def test_postgres_answers_to_every_driver(postgres_server: DatabaseServer, driver: str) -> None:
    assert select_one(postgres_server.url(driver)) == 1


@pytest.mark.parametrize("driver", MARIADB)
def test_mariadb_answers_to_every_driver(mariadb_server: DatabaseServer, driver: str) -> None:
    assert select_one(mariadb_server.url(driver)) == 1


def select_one(url: str) -> object:
    if url.partition("://")[0].endswith(ASYNC):
        return asyncio.run(select_one_async(url))
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return connection.execute(text("SELECT 1")).scalar_one()


async def select_one_async(url: str) -> object:
    async with create_async_engine(url, poolclass=NullPool).connect() as connection:
        return (await connection.execute(text("SELECT 1"))).scalar_one()


def test_a_wrong_password_is_refused(private: PrivateServer) -> None:
    driver = "postgresql+psycopg" if isinstance(private, PostgresServer) else "mysql+pymysql"
    url = private.url(driver).replace(PASSWORD, "guessed")
    with pytest.raises(OperationalError, match=r"password|Access denied"):
        select_one(url)


def test_a_database_in_use_can_be_dropped(private: PrivateServer) -> None:
    private.create_database("shortlived")
    with private.connect("shortlived") as connection:
        connection.execute(text("SELECT 1"))
        private.drop_database("shortlived")
        private.drop_database("shortlived")
    with pytest.raises(DBAPIError), private.connect("shortlived"):
        pass


def test_a_restart_keeps_the_address_and_the_data(private: PrivateServer, scratch: str) -> None:
    address = private.address
    private.restart()
    assert (private.address, rows(private, scratch)) == (address, 1)


def test_a_kill_leaves_no_process_and_keeps_the_data(private: PrivateServer, scratch: str) -> None:
    private.kill()
    assert private.pid is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(private.address, timeout=5)
    private.start()
    assert rows(private, scratch) == 1


def test_a_paused_server_says_nothing_until_it_is_resumed(private: PrivateServer, scratch: str) -> None:
    counted: list[int] = []
    with private.connect(scratch) as connection:
        private.pause()
        try:
            query = text("SELECT count(*) FROM t")
            asking = threading.Thread(target=lambda: counted.append(connection.execute(query).scalar_one()))
            asking.start()
            asking.join(0.3)
            assert asking.is_alive()
        finally:
            private.resume()
        asking.join(10)
    assert counted == [1]


def test_a_paused_server_can_be_stopped(private: PrivateServer) -> None:
    private.pause()
    private.stop()
    assert private.pid is None
    private.start()


@pytest.mark.parametrize("do", [PrivateServer.pause, PrivateServer.resume])
def test_a_server_may_end_while_it_is_signalled(
    private: PrivateServer, do: Callable[[PrivateServer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = iter([private.pid])
    monkeypatch.setattr(type(private), "pid", property(lambda _: next(pids, None)))
    monkeypatch.setattr(servers, "signal_tree", lambda pid, _: os.kill(pid, 0))
    do(private)


def test_a_taken_port_is_left_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with database_server("postgres") as first:
        if not isinstance(first, PostgresServer):
            pytest.skip("the environment names a server that is not ours")
        taken = first.address[1]
        with bind_free_port() as reserved:
            free = reserved.getsockname()[1]
        ports = iter([taken, free])
        monkeypatch.setattr(servers, "free_port", lambda: next(ports))
        with PostgresServer() as second:
            assert second.address[1] == free


def test_a_server_that_does_not_start_says_why(private: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "PORT_ATTEMPTS", 1)
    monkeypatch.setattr(servers, "free_port", lambda: private.address[1])
    with closing(type(private)()) as second, pytest.raises(ServerError, match=r"(?i)address already in use"):
        second.start()


def test_no_server_outlives_a_killed_test_run(private: PrivateServer) -> None:
    name = type(private).__name__
    script = f"""
import time
from tests.support.servers import {name}
server = {name}()
server.start()
print(server.directory, server.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        directory, pid = run.stdout.readline().split()
        assert is_running(int(pid))
        run.kill()
    wait_until(lambda: not is_running(int(pid)), what=f"{name} gone with the run that started it")
    remove_leftovers(Path(directory))
