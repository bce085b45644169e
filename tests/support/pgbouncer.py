"""A real PgBouncer before a PostgreSQL of the tests, as hosted databases often have."""

import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

from sqlalchemy import NullPool, create_engine, make_url
from sqlalchemy.exc import DBAPIError

from tests.support.database import DatabaseServer
from tests.support.ports import LOOPBACK
from tests.support.releases import Installed, Release
from tests.support.server_process import ServerProcess, first_account


class PgBouncer(ServerProcess):
    """``pool_mode``: ``session``, ``transaction`` or ``statement``."""

    product = "pgbouncer"
    programs = ("pgbouncer",)
    releases: ClassVar[Mapping[str, Release]] = {
        "installed": Installed("/usr/sbin")  # on Debian not in the $PATH of ordinary users
    }
    system_user = first_account("postgres", "nobody")  # it refuses to run as root
    stop_signal = signal.SIGTERM  # ends at once; SIGINT waits for clients

    def __init__(self, server: DatabaseServer, *, pool_mode: str = "transaction", pool_size: int = 2) -> None:
        super().__init__()
        self._server = server
        self._pool_mode = pool_mode
        self._pool_size = pool_size
        self._database = f"pooled_{uuid4().hex[:8]}"  # the name identifies our server

    def url(self, driver: str) -> str:
        host, port = self.address
        url = make_url(self._server.url(driver))
        return url.set(host=host, port=port, database=self._database).render_as_string(hide_password=False)

    def create_data(self) -> None:
        self.data.mkdir()

    def command(self, port: int) -> list[str]:
        url = make_url(self._server.url("postgresql"))
        target = f"host={url.host} port={url.port} dbname={url.database} user={url.username} password={url.password}"
        lines = [
            "[databases]",
            f"{self._database} = {target}",
            "[pgbouncer]",
            f"listen_addr = {LOOPBACK}",
            f"listen_port = {port}",
            "unix_socket_dir =",
            "auth_type = any",  # it logs in as the user above for every client
            f"pool_mode = {self._pool_mode}",
            f"default_pool_size = {self._pool_size}",
            "max_client_conn = 500",
        ]
        path: Path = self.directory / "pgbouncer.ini"
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o644)
        return [*self._programs["pgbouncer"], str(path)]

    def version(self) -> tuple[str, str]:
        done = subprocess.run([*self._programs["pgbouncer"], "--version"], capture_output=True, text=True, check=True)
        product, version, *_ = done.stdout.split()  # the output also has the versions of its libraries
        return product, version

    def answers(self) -> bool:
        engine = create_engine(self.url("postgresql+psycopg"), poolclass=NullPool, connect_args={"connect_timeout": 5})
        try:
            with engine.connect():
                return True
        except DBAPIError:
            return False
