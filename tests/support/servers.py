"""Private SQL servers for the tests.

Their time zone is not UTC: a statement that omits UTC fails here instead of at a user's site.
"""

import hashlib
import os
import signal
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from sqlalchemy import URL, text
from sqlalchemy.exc import DBAPIError

from tests.support.database import DatabaseServer
from tests.support.fetching import cache_directory
from tests.support.ports import LOOPBACK
from tests.support.releases import Fetched, Installed, Release
from tests.support.server_process import ServerProcess, first_account

USER = "shedlock"
PASSWORD = "s3cret-pw"
DATABASE = "shedlock"


class PrivateServer(ServerProcess, DatabaseServer):
    dialect: ClassVar[str]
    data_directory_query: ClassVar[str]

    @property
    def _url(self) -> URL:
        return URL.create(self.dialect, USER, PASSWORD, LOOPBACK, self._port, DATABASE)

    def answers(self) -> bool:
        try:
            with self.connect() as connection:
                return Path(connection.execute(text(self.data_directory_query)).scalar_one()) == self.data
        except DBAPIError:
            return False

    @abstractmethod
    def initialise_data(self) -> None:
        """Let the server's own program make `self.data`."""

    def create_data(self) -> None:
        """Initialise a data directory, or copy a template: MySQL's program takes ten seconds of a core."""
        template = self._template()
        if template.exists():
            # As root, this works even if the server's user cannot enter the cache: the copy keeps its owner.
            subprocess.run(["cp", "--archive", str(template), str(self.data)], check=True)
            return
        self.initialise_data()
        (self.data / "auto.cnf").unlink(missing_ok=True)  # the identity of a MySQL server
        # Another process may be first, or the cache full or not writable. Then the next server takes longer to start.
        with suppress(OSError, subprocess.CalledProcessError):
            template.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{template.name}-", dir=template.parent) as temporary:
                copy = Path(temporary) / "data"
                subprocess.run(["cp", "--archive", str(self.data), str(copy)], check=True, stderr=subprocess.DEVNULL)
                copy.rename(template)

    def _template(self) -> Path:
        """Return the folder of the data directory that these programs have made for this user."""
        program = Path(next(iter(self._programs.values()))[-1])
        facts = (self._programs, program.stat().st_mtime_ns, self.system_user, os.geteuid(), USER, PASSWORD, DATABASE)
        return cache_directory() / f"data-{self.product}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:12]}"


class PostgresServer(PrivateServer):
    product = "postgres"
    dialect = "postgresql"
    programs = ("initdb", "postgres")
    releases: ClassVar[Mapping[str, Release]] = {
        "18": Fetched("postgres"),
        "17": Fetched("postgres-17"),
        "installed": Installed("/usr/lib/postgresql/*/bin"),
    }
    system_user = first_account("postgres", "nobody")
    stop_signal = signal.SIGINT
    data_directory_query = "SHOW data_directory"

    def initialise_data(self) -> None:
        password_file = self.directory / "password"
        password_file.write_text(PASSWORD)
        password_file.chmod(0o644)
        self._run(
            *self._programs["initdb"], f"--pgdata={self.data}", f"--username={USER}", f"--pwfile={password_file}",
            "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync",
        )  # fmt: skip
        # Single-user mode takes statements from standard input, before any client can connect.
        self._run(
            "sh", "-c", f'echo "CREATE DATABASE {DATABASE}" | "$@"', "sh",
            *self._programs["postgres"], "--single", "-D", str(self.data), "postgres",
        )  # fmt: skip

    def command(self, port: int) -> list[str]:
        settings = {
            "listen_addresses": LOOPBACK,
            "unix_socket_directories": str(self.directory),
            "max_connections": "200",
            "fsync": "off",
            "dynamic_shared_memory_type": "mmap",  # in the data directory; a killed server leaves POSIX memory behind
            "timezone": "Asia/Kolkata",
            "log_timezone": "UTC",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [*self._programs["postgres"], "-D", str(self.data), "-p", str(port), *options]


class _MySqlLikeServer(PrivateServer):
    dialect = "mysql"
    stop_signal = signal.SIGTERM
    data_directory_query = "SELECT TRIM(TRAILING '/' FROM @@datadir)"

    def create_data(self) -> None:
        super().create_data()
        statements = [
            f"CREATE DATABASE IF NOT EXISTS {DATABASE};",
            f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';",
            f"GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'%' WITH GRANT OPTION;",
        ]
        self._init_file.write_text("\n".join(statements) + "\n")
        self._init_file.chmod(0o644)

    @property
    def _init_file(self) -> Path:
        return self.directory / "init.sql"

    def _options(self, port: int) -> list[str]:
        return [
            f"--datadir={self.data}", f"--tmpdir={self.directory}", f"--socket={self.directory}/socket",
            f"--pid-file={self.directory}/pid", f"--bind-address={LOOPBACK}", f"--port={port}",
            f"--init-file={self._init_file}", "--skip-name-resolve", "--character-set-server=utf8mb4",
            "--max-connections=200",
            "--innodb-flush-log-at-trx-commit=2",  # survives SIGKILL; 0 would not
            "--default-time-zone=+05:30",
        ]  # fmt: skip


class MariaDbServer(_MySqlLikeServer):
    product = "mariadb"
    programs = ("mariadbd", "mariadb-install-db")
    releases: ClassVar[Mapping[str, Release]] = {
        "installed": Installed("/usr/sbin")  # on Debian not in the $PATH of ordinary users
    }
    system_user = "mysql"

    def initialise_data(self) -> None:
        self._run(
            *self._programs["mariadb-install-db"], "--no-defaults", f"--datadir={self.data}",
            "--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-log-file-size=16M",
        )  # fmt: skip

    def command(self, port: int) -> list[str]:
        return [
            *self._programs["mariadbd"], "--no-defaults", *self._options(port),
            "--collation-server=utf8mb4_general_ci", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M",
        ]  # fmt: skip


class MySqlServer(_MySqlLikeServer):
    """MySQL. Root runs it as root: Debian's account "mysql" comes only with MariaDB's package.

    It does not speak TLS, so that tests can read the wire; clients encrypt passwords with its RSA key. Like MariaDB it
    runs without its performance schema, which halves start time and memory.
    """

    product = "mysql"
    programs = ("mysqld",)
    releases: ClassVar[Mapping[str, Release]] = {"9": Fetched("mysql"), "installed": Installed("/usr/sbin")}

    def initialise_data(self) -> None:
        self._run(*self._mysqld(), "--initialize-insecure", f"--datadir={self.data}")

    def command(self, port: int) -> list[str]:
        return [
            *self._mysqld(), *self._options(port), "--secure-file-priv=", "--mysqlx=OFF",
            "--innodb-buffer-pool-size=64M",
            "--sync-binlog=0",  # the binary log survives SIGKILL anyway
        ]  # fmt: skip

    def _mysqld(self) -> list[str]:
        mysqld = self._programs["mysqld"]
        usr = Path(mysqld[-1]).parents[1]
        user = ["--user=root"] if os.geteuid() == 0 else []
        return [
            *mysqld, "--no-defaults", *user, f"--basedir={usr}", f"--lc-messages-dir={usr}/share/mysql",
            f"--plugin-dir={usr}/lib/mysql/plugin", "--innodb-redo-log-capacity=16M", "--auto-generate-certs=OFF",
            "--performance-schema=OFF",
        ]  # fmt: skip
