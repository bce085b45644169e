"""A server as the tests see it: its URLs, what is in it, and a life that tests of faults interfere with."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, make_url, text

Address = tuple[str, int]


class Server(ABC):
    """A server of any kind: where it is, and what tests do to it."""

    @property
    @abstractmethod
    def address(self) -> Address:
        """Host and port: what a `TcpProxy` in front of it needs."""

    @abstractmethod
    def version(self) -> tuple[str, str]:
        """The product's name and the version, as the running server gives them."""

    @abstractmethod
    def start(self) -> None:
        """Bring it up and wait until it answers: on the same port as before, with the same data."""

    @abstractmethod
    def stop(self) -> None:
        """An orderly shutdown that does not wait for clients; the data are kept."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL to the server and its children; the data are kept."""

    @abstractmethod
    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""

    @abstractmethod
    def resume(self) -> None:
        """SIGCONT."""

    def restart(self) -> None:
        self.stop()
        self.start()


class DatabaseServer(Server):
    @property
    @abstractmethod
    def _url(self) -> URL: ...

    @property
    def address(self) -> Address:
        host, port = self._url.host, self._url.port
        if host is None or port is None:
            raise ValueError(f"the URL of a test server needs a host and a port: {self._url!r}")
        return host, port

    def url(self, driver: str, database: str | None = None, *, via: Address | None = None) -> str:
        """An SQLAlchemy URL with password, as in `url("postgresql+psycopg", "my_db", via=proxy.address)`."""
        url = self._url.set(drivername=driver)
        if database is not None:
            url = url.set(database=database)
        if via is not None:
            url = url.set(host=via[0], port=via[1])
        return url.render_as_string(hide_password=False)

    def version(self) -> tuple[str, str]:
        with self.connect() as connection:
            found = str(connection.execute(text("SELECT version()")).scalar_one())
        if self._is_postgres:  # PostgreSQL 18.1 on x86_64-pc-linux-gnu, compiled by …
            product, version, *_ = found.split()
            return product, version
        number, _, suffix = found.partition("-")  # 10.11.19-MariaDB-0+deb12u1, 9.7.4-2
        return "MariaDB" if "MariaDB" in suffix else "MySQL", number

    def create_database(self, name: str) -> None:
        with self.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {_identifier(name)}"))

    @contextmanager
    def new_database(self, name: str) -> Iterator[None]:
        """An empty database, dropped at the end."""
        self.drop_database(name)
        self.create_database(name)
        try:
            yield
        finally:
            self.drop_database(name)

    def drop_database(self, name: str) -> None:
        """It need not exist, and sessions that are still in it do not stop this."""
        force = " WITH (FORCE)" if self._is_postgres else ""
        with self.connect() as connection:
            connection.execute(text(f"DROP DATABASE IF EXISTS {_identifier(name)}{force}"))

    @contextmanager
    def connect(self, database: str | None = None) -> Iterator[Connection]:
        """An administrator's connection, in autocommit: to look at the server from the side."""
        url = self.url("postgresql+psycopg" if self._is_postgres else "mysql+pymysql", database)
        with _engine(url).connect() as connection:
            yield connection

    @property
    def _is_postgres(self) -> bool:
        return self._url.get_backend_name() == "postgresql"


@cache
def _engine(url: str) -> Engine:
    """Keeps no connection, but what SQLAlchemy asks each new engine's server: most of the time that a query takes."""
    return create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 5})


class ExternalLife(Server):
    """The life of a server that somebody else runs: tests that would stop it are skipped."""

    _variable: str

    def _refuse(self) -> None:
        pytest.skip(f"this test stops or pauses the server, and {self._variable} names one that is not ours")

    start = stop = kill = pause = resume = _refuse


class ExternalServer(ExternalLife, DatabaseServer):
    """The SQL server that the environment variable names."""

    def __init__(self, url: str, *, variable: str) -> None:
        self._given = make_url(url)
        self._variable = variable

    @property
    def _url(self) -> URL:
        return self._given


def _identifier(name: str) -> str:
    if not (name.isascii() and name.isidentifier() and name.islower()):
        raise ValueError(f"name databases in lower-case letters, digits and underscores, not {name!r}")
    return name
