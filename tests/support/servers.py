"""Private servers for the tests: each in a temporary directory, on a free port.

A server dies with the test run however that ends: it is closed by its fixture, at interpreter exit, and by the kernel
(`setpriv --pdeathsig`) if the run itself is killed. Its time zone is not UTC, so that a statement which forgets to say
UTC goes wrong here and not at a user's.
"""

import atexit
import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from sqlalchemy import URL, text
from sqlalchemy.exc import DBAPIError

from tests.support.database import Address, DatabaseServer, Server
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import kill_tree, signal_tree

USER = "shedlock"
PASSWORD = "s3cret-pw"
DATABASE = "shedlock"

START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0
PORT_ATTEMPTS = 5


class ServerError(RuntimeError):
    """A server did not start; carries the end of its log."""


class PortTakenError(ServerError):
    """Somebody took the port between our look at it and the server's."""


class ServerProcess(Server):
    """The life of a server of our own; what is special about a product is in the subclasses."""

    product: ClassVar[str]
    programs: ClassVar[tuple[str, ...]]
    search_in: ClassVar[str] = ""  # a pattern: where the programs are, if not in $PATH
    system_user: ClassVar[str | None] = None  # whom to be when the tests run as root, if the server refuses to be root
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self) -> None:
        self._programs = self.find_programs()
        # Not in $TMPDIR: the system user must get there, and the path of a Unix socket has at most 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix=f"shedlock-{self.product}-", dir="/tmp"))
        self.data = self.directory / "data"
        self.log = self.directory / "log"
        self.environment: dict[str, str] = {}
        """Added to ours when the server starts."""
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user: dict[str, Any] = {}
        if self.system_user is not None and os.geteuid() == 0:
            account = pwd.getpwnam(self.system_user)
            os.chown(self.directory, account.pw_uid, account.pw_gid)
            self._as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._owner = os.getpid()
        atexit.register(self.close)

    @classmethod
    def find_programs(cls) -> dict[str, str]:
        """The programs' paths by name; `ServerError` if one is not installed."""
        directories = [*sorted(glob.glob(cls.search_in), reverse=True), os.environ.get("PATH", os.defpath)]
        found = {program: shutil.which(program, path=os.pathsep.join(directories)) for program in cls.programs}
        if missing := [program for program, path in found.items() if path is None]:
            raise ServerError(f"not installed: {', '.join(missing)}")
        return {program: path for program, path in found.items() if path is not None}

    @abstractmethod
    def create_data(self) -> None:
        """Make `self.data` and whatever else the server needs before it starts for the first time."""

    @abstractmethod
    def command(self, port: int) -> list[str]: ...

    @abstractmethod
    def answers(self) -> bool:
        """Whether it is our server that answers on the port, and not somebody else's."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> Address:
        if self._port is None:
            raise ServerError(f"{self.product} has no address before it is started for the first time")
        return LOOPBACK, self._port

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        if self.pid is not None:
            return
        if threading.current_thread() is not threading.main_thread():
            # The kernel's death signal goes by the thread that started the process.
            raise ServerError("start a server from the main thread; it would die together with any other")
        if not self.data.exists():
            self.create_data()
        if self._port is not None:
            self._start_on(self._port)
            return
        for attempts_left in reversed(range(PORT_ATTEMPTS)):
            try:
                self._port = free_port()
                self._start_on(self._port)
                return
            except PortTakenError:
                self._port = None
                if not attempts_left:
                    raise

    def stop(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(self.stop_signal)
                self.resume()
                try:
                    self._process.wait(STOP_TIMEOUT)
                except subprocess.TimeoutExpired:
                    self.kill()
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                kill_tree(self._process.pid)
            self._process.wait(STOP_TIMEOUT)
            self._process = None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        # A forked child runs our exit handler too if it ends in sys.exit().
        if os.getpid() == self._owner:
            atexit.unregister(self.close)
            self.stop()
            remove_leftovers(self.directory)

    def _signal(self, signum: signal.Signals) -> None:
        pid = self.pid  # asked once: it may end at any moment
        if pid is not None:
            signal_tree(pid, signum)

    def _start_on(self, port: int) -> None:
        log_before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self.command(port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C is for pytest, whose fixtures then stop the server
                **self._as_user,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while not self.answers():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.kill()
                output = self.log.read_bytes()[log_before:].decode(errors="replace")
                error = PortTakenError if "address already in use" in output.lower() else ServerError
                problem = "ended at once" if ended else f"did not answer within {START_TIMEOUT:g} s"
                raise error(f"{self.product} on port {port} {problem}; its log:\n{_tail(output)}")
            time.sleep(0.02)

    def _run(self, *command: str) -> None:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.directory,
            start_new_session=True,  # Ctrl-C is for us, who then stop a script with all that it has started
            **self._as_user,
        ) as process:
            try:
                output, _ = process.communicate()
            except BaseException:
                kill_tree(process.pid)
                raise
        if process.returncode != 0:
            raise ServerError(f"{command[0]} ended with {process.returncode}:\n{_tail(output)}")


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


class PostgresServer(PrivateServer):
    product = "postgres"
    dialect = "postgresql"
    programs = ("initdb", "postgres")
    search_in = "/usr/lib/postgresql/*/bin"
    system_user = "postgres"
    stop_signal = signal.SIGINT
    data_directory_query = "SHOW data_directory"

    def create_data(self) -> None:
        password_file = self.directory / "password"
        password_file.write_text(PASSWORD)
        password_file.chmod(0o644)
        self._run(
            self._programs["initdb"], f"--pgdata={self.data}", f"--username={USER}", f"--pwfile={password_file}",
            "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync",
        )  # fmt: skip
        # Single-user mode takes statements from its standard input, before there is a server to connect to.
        self._run(
            "sh", "-c", f'echo "CREATE DATABASE {DATABASE}" | "$0" --single -D "$1" postgres',
            self._programs["postgres"], str(self.data),
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
        return [self._programs["postgres"], "-D", str(self.data), "-p", str(port), *options]


class MariaDbServer(PrivateServer):
    product = "mariadb"
    dialect = "mysql"
    programs = ("mariadbd", "mariadb-install-db")
    search_in = "/usr/sbin"  # which is not in the $PATH of ordinary users on Debian
    system_user = "mysql"
    stop_signal = signal.SIGTERM
    data_directory_query = "SELECT TRIM(TRAILING '/' FROM @@datadir)"

    def create_data(self) -> None:
        self._run(
            self._programs["mariadb-install-db"], "--no-defaults", f"--datadir={self.data}",
            "--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-log-file-size=16M",
        )  # fmt: skip
        statements = [
            f"CREATE DATABASE IF NOT EXISTS {DATABASE};",
            f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';",
            f"GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'%' WITH GRANT OPTION;",
        ]
        self._init_file.write_text("\n".join(statements) + "\n")
        self._init_file.chmod(0o644)

    def command(self, port: int) -> list[str]:
        return [
            self._programs["mariadbd"], "--no-defaults", f"--datadir={self.data}", f"--tmpdir={self.directory}",
            f"--socket={self.directory}/socket", f"--pid-file={self.directory}/pid", f"--bind-address={LOOPBACK}",
            f"--port={port}", f"--init-file={self._init_file}", "--skip-name-resolve", "--character-set-server=utf8mb4",
            "--collation-server=utf8mb4_general_ci", "--max-connections=200", "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=16M",
            "--innodb-flush-log-at-trx-commit=2",  # survives SIGKILL, which 0 would not
            "--default-time-zone=+05:30",
        ]  # fmt: skip

    @property
    def _init_file(self) -> Path:
        return self.directory / "init.sql"


def remove_leftovers(directory: Path) -> None:
    """Remove the directory of a server that has ended, and what it left outside if it was killed."""
    pid_file = directory / "data" / "postmaster.pid"
    if pid_file.exists():  # PostgreSQL removes it, and its System V segment, when it ends in order
        lines = pid_file.read_text().splitlines()
        if len(lines) > 6:
            segment = lines[6].split()[1]
            subprocess.run(["ipcrm", "--shmem-id", segment], stderr=subprocess.DEVNULL)
    shutil.rmtree(directory, ignore_errors=True)


def _tail(output: str) -> str:
    return "\n".join(output.splitlines()[-30:])
