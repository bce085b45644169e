"""A server for the tests: its URLs, its databases, and the ways to stop, kill and pause it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, make_url, text

Address = tuple[str, int]


class Server(ABC):
    @property
    @abstractmethod
    def address(self) -> Address:
        """Host and port, for a `TcpProxy` in front of the server."""

    @abstractmethod
    def version(self) -> tuple[str, str]:
        """The product's name and version, as the running server reports them."""

    @abstractmethod
    def start(self) -> None:
        """Start the server, on the same port and with the same data as before, and wait until it replies."""

    @abstractmethod
    def stop(self) -> None:
        """Shut down in order, without waiting for clients. The data stay."""

    @abstractmethod
    def kill(self) -> None:
        """Send SIGKILL to the server and its children. The data stay."""

    @abstractmethod
    def pause(self) -> None:
        """Send SIGSTOP: connections stay open and nothing replies."""

    @abstractmethod
    def resume(self) -> None:
        """Send SIGCONT."""

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
        """Return an SQLAlchemy URL with password, as in `url("postgresql+psycopg", "my_db", via=proxy.address)`."""
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
        """Create an empty database and drop it at the end."""
        self.drop_database(name)
        self.create_database(name)
        try:
            yield
        finally:
            self.drop_database(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, if it exists, even if sessions are still in it."""
        force = " WITH (FORCE)" if self._is_postgres else ""
        with self.connect() as connection:
            connection.execute(text(f"DROP DATABASE IF EXISTS {_identifier(name)}{force}"))

    @contextmanager
    def connect(self, database: str | None = None) -> Iterator[Connection]:
        """Open an administrator's connection in autocommit mode, to look at the server from outside."""
        url = self.url("postgresql+psycopg" if self._is_postgres else "mysql+pymysql", database)
        with _engine(url).connect() as connection:
            yield connection

    @property
    def _is_postgres(self) -> bool:
        return self._url.get_backend_name() == "postgresql"


@cache
def _engine(url: str) -> Engine:
    """Keep no connections, but cache the first replies of the server to an engine: most of a query's time."""
    return create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 5})


class ExternalLife(Server):
    """A server that somebody else runs. Tests that would stop it are skipped."""

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
