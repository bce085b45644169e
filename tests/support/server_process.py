"""The life of a private test server: in a temporary directory, on a free port.

A server always ends with the test run: its fixture closes it, or the interpreter's exit, or the kernel (`setpriv
--pdeathsig`) if the run itself is killed.
"""

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.support import memory
from tests.support.database import Address, Server
from tests.support.fetching import MissingError
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import kill_tree, signal_tree
from tests.support.releases import Installed, Release, chosen
from tests.support.versions import record

START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0


class ServerError(RuntimeError):
    """A server is missing or did not start; the message has the end of its log."""


class MissingServerError(ServerError):
    """A program of the server is missing. ``cure`` is the command that brings it.

    In CI, a test fails if a required server is missing.
    """

    def __init__(self, reason: str, cure: str, *, is_required: bool) -> None:
        super().__init__(reason)
        self.cure, self.is_required = cure, is_required


def first_account(*names: str) -> str:
    """Return the first of these users that the system has, or else the last of them."""
    known = {account.pw_name for account in pwd.getpwall()}
    return next((name for name in names if name in known), names[-1])


class ServerProcess(Server):
    """A private server. Subclasses add the details of a product."""

    product: ClassVar[str]
    programs: ClassVar[tuple[str, ...]]
    tools: ClassVar[tuple[str, ...]] = ()  # programs of the system that it also needs
    releases: ClassVar[Mapping[str, Release]] = {"installed": Installed()}  # the first is the default
    is_required: ClassVar[bool] = True  # False: CI runs without it
    brought_by: ClassVar[str] = "make servers"  # the command that brings the default release
    system_user: ClassVar[str | None] = None  # the user for the server if tests run as root and the server refuses root
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self) -> None:
        self._programs = self.find_programs()
        self.directory = Path(tempfile.mkdtemp(prefix=f"shedlock-{self.product}-", dir=memory.servers_directory()))
        self.data = self.directory / "data"
        self.log = self.directory / "log"
        self.environment: dict[str, str] = {}
        """Variables that are added to ours when the server starts."""
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
    def find_programs(cls) -> dict[str, list[str]]:
        """Return the words that run each program of the chosen release. :raises MissingServerError: a program is
        missing."""
        return cls.programs_of(chosen(cls.product, cls.releases))

    @classmethod
    def programs_of(cls, release: Release) -> dict[str, list[str]]:
        """:raises MissingServerError: a program is missing."""
        try:
            found = {program: release.find(program) for program in cls.programs}
            return found | {tool: Installed().find(tool) for tool in cls.tools}
        except MissingError as error:
            is_default = release == next(iter(cls.releases.values()))
            cure = cls.brought_by if is_default else "make servers-all"
            raise MissingServerError(str(error), cure, is_required=cls.is_required) from error

    @abstractmethod
    def create_data(self) -> None:
        """Make `self.data` and everything else that the server needs before its first start."""

    @abstractmethod
    def command(self, port: int) -> list[str]: ...

    @abstractmethod
    def answers(self) -> bool:
        """Return whether our server replies on the port, not somebody else's."""

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
        process = self._process  # read once: another thread may end it
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        if self.pid is not None:
            return
        if threading.current_thread() is not threading.main_thread():
            # The kernel's death signal follows the thread that started the process.
            raise ServerError("start a server from the main thread; it would die together with any other")
        if not self.data.exists():
            self.create_data()
        is_first = self._port is None
        if self._port is None:
            self._port = free_port()
        self._start_on(self._port)
        if is_first:
            record(*self.version())

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
        # A forked child runs our exit handler too if it ends with sys.exit().
        if os.getpid() == self._owner:
            atexit.unregister(self.close)
            self.stop()
            remove_leftovers(self.directory)

    def _signal(self, signum: signal.Signals) -> None:
        pid = self.pid  # read once: it may end at any moment
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
                start_new_session=True,  # Ctrl-C is for pytest; its fixtures then stop the server
                **self._as_user,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while not self.answers():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.kill()
                output = self.log.read_bytes()[log_before:].decode(errors="replace")
                problem = "ended at once" if ended else f"did not answer within {START_TIMEOUT:g} s"
                raise ServerError(f"{self.product} on port {port} {problem}; its log:\n{_tail(output)}")
            time.sleep(0.02)

    def _run(self, *command: str) -> None:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.directory,
            start_new_session=True,  # Ctrl-C is for us; we then stop a script and its children
            **self._as_user,
        ) as process:
            try:
                output, _ = process.communicate()
            except BaseException:
                kill_tree(process.pid)
                raise
        if process.returncode != 0:
            raise ServerError(f"{command[0]} ended with {process.returncode}:\n{_tail(output)}")


def remove_leftovers(directory: Path) -> None:
    """Remove the directory of a server that has ended, and anything that a killed server left elsewhere."""
    pid_file = directory / "data" / "postmaster.pid"
    if pid_file.exists():  # PostgreSQL removes the file and its System V segment when it ends in order
        lines = pid_file.read_text().splitlines()
        if len(lines) > 6:
            segment = lines[6].split()[1]
            subprocess.run(["ipcrm", "--shmem-id", segment], stderr=subprocess.DEVNULL)
    shutil.rmtree(directory, ignore_errors=True)


def _tail(output: str) -> str:
    return "\n".join(output.splitlines()[-30:])
