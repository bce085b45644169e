"""Start Python programs in 10 ms: a server process forks, and no new interpreter imports everything again.

The server is a child of the tests' process. It has imported the libraries that most programs need. It forks a child for
each :class:`Program`. The kernel kills these children if the server ends, and the server ends with the tests.

:mod:`tests.support.fork_server` is the server. Use :mod:`subprocess` if a test is about the start itself: imports, the
flags of the interpreter, entry points, streams.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from typing import IO, Any, Self

PROJECT = Path(__file__).parents[2]
OWN_VARIABLES = {"PYTHONPATH", "PYTHONIOENCODING", "PYTHONUNBUFFERED"}
"""Variables of Python that a child obeys. The server has read the other variables at its start."""

_MAIN = (
    "import sys; base = [*sys.path]; sys.path.insert(0, {!r}); "
    "from tests.support.fork_server import serve; serve({}, base)()"
)  # fmt: skip


class Program:
    """A program in its own process, with the methods of :class:`subprocess.Popen`. Its pipes carry text.

    :param words: the words after the interpreter: ``-m MODULE``, ``-c CODE`` or a file, then arguments. ``-W error``
        may come first.
    :param preload: more modules that the server imports before it forks.
    :param on_terminal: make the terminal that is standard input the controlling one of a new session.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        encoding: str = "utf-8",
        preload: Sequence[str] = (),
        start_new_session: bool = False,
        on_terminal: bool = False,
    ) -> None:
        self.args, self.returncode = list(words), None
        env = {**os.environ} if env is None else {**env}
        _check(env)
        request: dict[str, object] = {"words": self.args, "env": env, "cwd": str(Path(cwd or ".").resolve())}
        request["preload"] = list(preload)
        request |= {"session": start_new_session or on_terminal, "terminal": on_terminal}
        given: list[int] = []
        pipes: list[IO[str] | None] = [None, None, None]
        for number, stream in enumerate((stdin, stdout, stderr)):
            if stream == subprocess.PIPE:
                ends = os.pipe()
                child, parent = ends if number == 0 else ends[::-1]
                pipes[number] = os.fdopen(parent, "r" if number else "w", encoding=encoding)
            elif stream == subprocess.DEVNULL:
                child = os.open(os.devnull, os.O_RDWR)
            elif stream == subprocess.STDOUT:
                child = os.dup(given[1])
            else:
                child = os.dup(number if stream is None else stream if isinstance(stream, int) else stream.fileno())
            given.append(child)
        self.stdin, self.stdout, self.stderr = pipes
        self._connection, others = socket.socketpair()
        given.append(others.detach())
        server = _server.connection()
        try:
            socket.send_fds(server, [json.dumps(request).encode()], given)
        finally:
            for fd in given:
                os.close(fd)
        pid, (self._pidfd,), _, _ = socket.recv_fds(self._connection, 20, 1)
        self.pid = int(pid)
        _server.has_replied()
        weakref.finalize(self, os.close, self._pidfd)
        self._reaping = Lock()
        self._readers: list[Thread] = []
        self._read: dict[int, str] = {}

    returncode: int | Any
    """The exit code, or minus the signal's number, once :meth:`poll` or :meth:`wait` has seen the end."""

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        ending = select.poll()
        ending.register(self._pidfd, select.POLLIN)
        if self.returncode is None and not ending.poll(None if timeout is None else max(timeout, 0) * 1000):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._reaping:
            if self.returncode is None:
                self._connection.send(b"reap")
                self.returncode = os.waitstatus_to_exitcode(int(self._connection.recv(20)))
                self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Write the input, read all output, and wait for the end. Without a pipe the text is empty.

        ``stdout`` and ``stderr`` are None afterwards: threads read and close them, also after a timeout.
        """
        ends_at = None if timeout is None else time.monotonic() + timeout
        for number, pipe in enumerate((self.stdout, self.stderr), 1):
            if pipe is not None:
                self._readers.append(Thread(target=self._read_all, args=[number, pipe], daemon=True))
                self._readers[-1].start()
        self.stdout = self.stderr = None
        if self.stdin is not None and not self.stdin.closed:
            with suppress(BrokenPipeError):
                self.stdin.write(input or "")
            with suppress(BrokenPipeError):
                self.stdin.close()
        for reader in self._readers:
            reader.join(None if ends_at is None else max(ends_at - time.monotonic(), 0))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if ends_at is None else ends_at - time.monotonic())
        return self._read.get(1, ""), self._read.get(2, "")

    def _read_all(self, number: int, pipe: IO[str]) -> None:
        with pipe:
            self._read[number] = pipe.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self.wait()


Process = Program | subprocess.Popen[str]
"""The type of a process that a test starts either by a fork or by a new interpreter."""


def run(
    words: Sequence[str], *, input: str | None = None, timeout: float = 60, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a :class:`Program` as ``subprocess.run(capture_output=True)`` does. Kill it after the timeout."""
    streams = {"stdin": subprocess.DEVNULL if input is None else subprocess.PIPE}
    streams |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Program(words, **{**streams, **options}) as program:
        try:
            out, err = program.communicate(input, timeout)
        except BaseException:
            program.kill()
            raise
    return subprocess.CompletedProcess(program.args, program.returncode, out, err)


def stop() -> None:
    """End the server of this process. Its children end with it."""
    _server.stop()


def start_cost() -> float:
    """Return the CPU-seconds that the servers of this process took to start. The first test does not pay for them."""
    return _server.start_cost


def _check(env: Mapping[str, str]) -> None:
    names = {name for name, value in {*env.items()} ^ {*os.environ.items()}} - OWN_VARIABLES
    if unheard := [name for name in names if name.startswith(("PYTHON", "LANG", "LC_"))]:
        raise ValueError(f"{', '.join(unheard)}: an interpreter reads this at its start: use subprocess")


class _Server:
    def __init__(self) -> None:
        self._starting = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._has_replied = False
        self.start_cost = 0.0

    def connection(self) -> socket.socket:
        with self._starting:
            if self._connection is None:
                self._connection, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with others:
                    fd = others.fileno()
                    # A new session: Ctrl-C on the terminal is for the tests only.
                    self._process = subprocess.Popen(
                        [sys.executable, "-c", _MAIN.format(str(PROJECT), fd)],
                        pass_fds=[fd], cwd=PROJECT, stdin=subprocess.DEVNULL, start_new_session=True,
                        env={name: value for name, value in os.environ.items() if name not in OWN_VARIABLES},
                    )  # fmt: skip
            return self._connection

    def has_replied(self) -> None:
        """Count the CPU time of its start, at its first reply: it has imported everything."""
        with self._starting:
            if not self._has_replied and self._process is not None:
                self._has_replied = True
                fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
                self.start_cost += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        with self._starting:
            self._has_replied = False
            if self._connection is not None and self._process is not None:
                self._connection.close()
                self._process.wait()
            self._connection = self._process = None


_server = _Server()
