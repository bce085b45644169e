"""Stores on a full disk of about a megabyte: a tmpfs, which only root may mount.

The disk holds the whole file of SQLite, the lock table or the write-ahead log of PostgreSQL, or the binary log of
MariaDB and MySQL. (InnoDB reuses the space that its tables and its log already have.)
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from tests.faults.fleet import TIMEOUT
from tests.support.availability import private_server
from tests.support.database import DatabaseServer
from tests.support.polling import wait_until
from tests.support.servers import MariaDbServer, MySqlServer, PostgresServer, PrivateServer
from tests.support.stores import STORES, SqliteStore, SqlServerStore, Store, postgres_store

Small = tuple[Store, Callable[[], AbstractContextManager[None]]]
"""A store, and a context manager that fills its disk."""


@contextmanager
def tmpfs(size: str, owner: str = "root") -> Iterator[Path]:
    """:raises OSError: this user may not mount anything."""
    with tempfile.TemporaryDirectory(prefix="shedlock-tmpfs-", dir="/tmp") as directory:
        options = f"size={size},mode=755,uid={pwd.getpwnam(owner).pw_uid}"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory], capture_output=True, text=True
        )
        if done.returncode:
            raise OSError(errno.EPERM, f"no tmpfs: {done.stderr.strip()}")
        try:
            os.chmod(directory, 0o755)
            yield Path(directory)
        finally:
            subprocess.run(["umount", "--lazy", directory], check=True)


def fill(directory: Path) -> Path:
    """Write a file into the directory until no byte more can be written. Return the file."""
    filler = directory / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (2**16, 512):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    assert os.statvfs(directory).f_bavail == 0
    return filler


@contextmanager
def filled(directory: Path) -> Iterator[None]:
    filler = fill(directory)
    try:
        yield
    finally:
        filler.unlink()


# SQLite


@contextmanager
def sqlite_file(store: Store) -> Iterator[Small]:
    with tmpfs("1m") as directory:
        small = SqliteStore(directory).like(store)
        yield small, partial(_full_file, directory)


@contextmanager
def _full_file(directory: Path) -> Iterator[None]:
    with closing(sqlite3.connect(directory / "locks.db", timeout=30, isolation_level=None)) as connection:
        connection.execute("SELECT * FROM sqlite_master").fetchall()  # it opens the log while the disk still has room
        with filled(directory):
            # The write-ahead log may have space to reuse until it is emptied.
            empty = partial(connection.execute, "PRAGMA wal_checkpoint(TRUNCATE)")
            wait_until(lambda: empty().fetchone()[0] == 0, timeout=TIMEOUT)
            connection.close()
            fill(directory)
            yield


# PostgreSQL


@contextmanager
def postgres_table(store: Store) -> Iterator[Small]:
    """The lock table in a small tablespace: a statement that needs another page fails (``disk_full``)."""
    server = cast(SqlServerStore, store).server
    name = f"small_{os.getpid()}_{id(store)}"
    with tmpfs("1m", PostgresServer.system_user or "root") as directory, server.connect() as admin:
        small = postgres_store(server).like(store)
        table = small.options["table_name"]
        admin.exec_driver_sql(f"CREATE TABLESPACE {name} LOCATION '{directory}'")
        try:
            admin.exec_driver_sql(f"ALTER TABLE {table} SET TABLESPACE {name}")
            yield small, partial(_full_table, server, table, directory)
        finally:
            admin.exec_driver_sql(f"DROP TABLE {table}")
            admin.exec_driver_sql(f"DROP TABLESPACE {name}")


@contextmanager
def _full_table(server: DatabaseServer, table: str, directory: Path) -> Iterator[None]:
    """An old snapshot keeps PostgreSQL from reusing the space of old versions."""
    with server.connect() as old, server.connect() as admin:
        old.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ")
        name = old.exec_driver_sql(f"SELECT min(name) FROM {table}").scalar_one()
        with filled(directory):
            # Add versions of one record, each with the old values, until the disk is full.
            is_full = False
            while not is_full:
                try:
                    admin.exec_driver_sql(f"UPDATE {table} SET locked_by = locked_by WHERE name = '{name}'")
                except OperationalError as error:
                    if "No space left" not in str(error):
                        raise
                    is_full = True
            yield
        old.exec_driver_sql("ROLLBACK")


@contextmanager
def postgres_log(store: Store) -> Iterator[Small]:
    """The write-ahead log on a small disk: the server gives up. Start it again when the disk has room."""
    user = PostgresServer.system_user or "root"
    with tmpfs("40m", user) as directory, private_server("postgres", PostgresServer) as server:
        with server.connect() as admin:  # otherwise it restarts itself, finds room, and goes on
            admin.exec_driver_sql("ALTER SYSTEM SET restart_after_crash = off")
        server.stop()
        own, there = server.data / "pg_wal", directory / "pg_wal"
        shutil.copytree(own, there)
        shutil.rmtree(own)
        own.symlink_to(there)
        subprocess.run(["chown", "-R", user, str(there)], check=True)
        server.start()
        small = postgres_store(server).like(store)
        yield small, partial(_full_log, server, directory)


@contextmanager
def _full_log(server: PostgresServer, directory: Path) -> Iterator[None]:
    def has_given_up() -> bool:
        with suppress(OperationalError), server.connect() as admin:
            while True:  # each call takes a new file, and only a checkpoint would free files
                admin.exec_driver_sql("SELECT pg_switch_wal()")
                admin.exec_driver_sql("SELECT pg_logical_emit_message(true, 'shedlock', 'x')")
        return server.pid is None

    with filled(directory):
        wait_until(has_given_up, timeout=TIMEOUT, what="the server has given up")
        yield
    server.start()


# MariaDB and MySQL


class LoggedMariaDbServer(MariaDbServer):
    logs: Path

    def command(self, port: int) -> list[str]:
        return [*super().command(port), f"--log-bin={self.logs}/binlog", "--binlog-format=ROW"]


class LoggedMySqlServer(MySqlServer):
    logs: Path

    def command(self, port: int) -> list[str]:
        return [*super().command(port), f"--log-bin={self.logs}/binlog"]


@contextmanager
def binary_log(store: Store) -> Iterator[Small]:
    """The binary log on a small disk: commits hang until it has room. The server checks for room once a minute."""
    logged = LoggedMySqlServer if store.name == "mysql" else LoggedMariaDbServer
    with tmpfs("1m", logged.system_user or "root") as directory:
        logged.logs = directory
        with private_server(store.name, logged) as server:
            yield STORES[store.name].store(server).like(store), partial(_full_binary_log, server, directory)


@contextmanager
def _full_binary_log(server: PrivateServer, directory: Path) -> Iterator[None]:
    """Kill the server and start it again when the disk has room, so that nobody waits for the minute to pass."""
    with filled(directory):
        # The last page of the log's file has room for a few more commits: insert until a commit hangs.
        limits = {"read_timeout": 1}
        engine = create_engine(server.url("mysql+pymysql"), connect_args=limits, isolation_level="AUTOCOMMIT")
        with suppress(OperationalError), engine.connect() as connection:
            connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS filler (number BIGINT)")
            while True:
                connection.exec_driver_sql("INSERT INTO filler VALUES (1)")
        engine.dispose()
        yield
        server.kill()
    server.start()
