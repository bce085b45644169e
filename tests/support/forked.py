"""Start Python programs in 10 ms: a server process forks, and no new interpreter imports everything again.

The server is a child of the tests' process. It has imported the libraries that most programs need. It forks a child for
each :class:`Program`. The kernel kills these children if the server ends, and the server ends with the tests.

Use :mod:`subprocess` if a test is about the start itself: imports, flags of the interpreter, entry points, streams.
"""

from __future__ import annotations

import atexit
import codecs
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from typing import IO, Any, Self

PROJECT = Path(__file__).parents[2]
PRELOADED = [f"shedlock_py.cli.{name}" for name in ("app", "guarded", "leading", "pause", "show", "supervisor")]
PRELOADED += ["shedlock_py.election.async_elector", "shedlock_py.integrations.apscheduler", "shedlock_py.blocking"]
PRELOADED += ["shedlock_py.providers.sqlalchemy", "shedlock_py.providers.redis", "shedlock_py.testing.forks"]
PRELOADED += [
    "sqlalchemy.orm",
    "sqlalchemy.ext.asyncio",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.dialects.postgresql",
]
PRELOADED += ["psycopg", "asyncpg", "aiosqlite", "tests.support.doubles", "tests.support.polling"]
PRELOADED += ["apscheduler.schedulers.background", "apscheduler.schedulers.asyncio", "apscheduler.triggers.cron"]
OWN_VARIABLES = {"PYTHONPATH", "PYTHONIOENCODING", "PYTHONUNBUFFERED"}
"""Variables of Python that a child obeys. The server has read all others at its start."""

_MAIN = (
    "import sys; base = [*sys.path]; sys.path.insert(0, {!r}); "
    "from tests.support.forked import serve; serve({}, base)()"
)  # fmt: skip
_LARGEST_REQUEST = 200_000
_PR_SET_PDEATHSIG = 1


class Program:
    """A program in a process of its own, with the methods of :class:`subprocess.Popen`; its pipes carry text.

    :param words: the words after the interpreter: ``-m MODULE``, ``-c CODE`` or a file, then arguments. ``-W error``
        may come first.
    :param preload: modules that the server imports, too, before it forks.
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
        closed: list[int] = []
        given: list[int] = []
        self._pipes: list[IO[str] | None] = [None, None, None]
        for number, stream in enumerate((stdin, stdout, stderr)):
            if stream == subprocess.PIPE:
                ends = os.pipe()
                child, parent = ends if number == 0 else ends[::-1]
                self._pipes[number] = os.fdopen(parent, "r" if number else "w", encoding=encoding)
            elif stream == subprocess.DEVNULL:
                child = os.open(os.devnull, os.O_RDWR)
            elif stream == subprocess.STDOUT:
                child = os.dup(given[1])
            else:
                child = os.dup(number if stream is None else stream if isinstance(stream, int) else stream.fileno())
            given.append(child)
        self.stdin, self.stdout, self.stderr = self._pipes
        self._connection, others = socket.socketpair()
        closed = [*given, others.detach()]
        try:
            socket.send_fds(_server.connection(), [json.dumps(request).encode()], closed)
        finally:
            for fd in closed:
                os.close(fd)
        pid, (self._pidfd,), _, _ = socket.recv_fds(self._connection, 20, 1)
        self.pid = int(pid)
        weakref.finalize(self, os.close, self._pidfd)
        self._reaping = Lock()
        self._readers: dict[int, Thread] = {}
        self._read: dict[int, str] = {}

    returncode: int | None
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
        """Write the input, read all output, and wait for the end. A pipe that there is not gives no text."""
        ends_at = None if timeout is None else time.monotonic() + timeout
        for number, pipe in enumerate(self._pipes[1:], 1):
            if pipe is not None and number not in self._readers:
                self._readers[number] = Thread(target=self._read_all, args=[number, pipe], daemon=True)
                self._readers[number].start()
        if self.stdin is not None and not self.stdin.closed:
            with suppress(BrokenPipeError):
                self.stdin.write(input or "")
            with suppress(BrokenPipeError):
                self.stdin.close()
        for reader in self._readers.values():
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
        for pipe in self._pipes:
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self.wait()


Process = Program | subprocess.Popen[str]
"""Where a test needs a new interpreter in one case, and a fork in another."""


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
    assert program.returncode is not None
    return subprocess.CompletedProcess(program.args, program.returncode, out, err)


def stop() -> None:
    """End the server of this process, if it has one, and with it all of its children."""
    _server.stop()


def _check(env: Mapping[str, str]) -> None:
    names = {name for name, value in {*env.items()} ^ {*os.environ.items()}} - OWN_VARIABLES
    if unheard := [name for name in names if name.startswith(("PYTHON", "LANG", "LC_"))]:
        raise ValueError(f"{', '.join(unheard)}: an interpreter reads this at its start: use subprocess")


class _Server:
    def __init__(self) -> None:
        self._starting = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    def connection(self) -> socket.socket:
        with self._starting:
            if self._connection is None:
                self._connection, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with others:
                    fd = others.fileno()
                    # A session of its own: Ctrl-C on the terminal is for the tests only.
                    self._process = subprocess.Popen(
                        [sys.executable, "-c", _MAIN.format(str(PROJECT), fd)],
                        pass_fds=[fd], cwd=PROJECT, stdin=subprocess.DEVNULL, start_new_session=True,
                        env={name: value for name, value in os.environ.items() if name not in OWN_VARIABLES},
                    )  # fmt: skip
            return self._connection

    def stop(self) -> None:
        with self._starting:
            if self._connection is not None and self._process is not None:
                self._connection.close()
                self._process.wait()
            self._connection = self._process = None


_server = _Server()


# In the server, and in its children


def serve(fd: int, path: list[str]) -> Callable[[], object]:
    """Fork a child for each request, until the tests close the connection. Return in the child only: its program."""
    atexit.register(_end_at_once)  # the first one runs last
    _preload(PRELOADED)
    prctl = ctypes.CDLL(None).prctl
    control = socket.socket(fileno=fd)
    children: dict[int, tuple[socket.socket, int]] = {}
    abandoned: list[int] = []
    ready = select.poll()
    ready.register(control, select.POLLIN)
    while True:
        abandoned = [pid for pid in abandoned if not os.waitpid(pid, os.WNOHANG)[0]]
        for number, _ in ready.poll(1000 if abandoned else None):
            if number != fd:  # a child has ended, or nobody needs its exit status
                connection, pid = children.pop(number)
                ready.unregister(number)
                with connection, suppress(ConnectionError):
                    if connection.recv(20):
                        connection.send(str(os.waitpid(pid, 0)[1]).encode())
                    else:
                        abandoned.append(pid)
                continue
            message, fds, _, _ = socket.recv_fds(control, _LARGEST_REQUEST, 4)
            if not message:
                sys.exit()
            request = json.loads(message)
            _preload(request["preload"])
            connection = socket.socket(fileno=fds.pop())
            pid = os.fork()
            if not pid:
                prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                for other in (control, connection, *(other for other, _ in children.values())):
                    other.close()
                return _prepare(request, fds, path)
            pidfd = os.pidfd_open(pid)
            with suppress(ConnectionError):
                socket.send_fds(connection, [str(pid).encode()], [pidfd])
            for each in (pidfd, *fds):
                os.close(each)
            children[connection.fileno()] = connection, pid
            ready.register(connection, select.POLLIN)


def _preload(modules: Sequence[str]) -> None:
    if not {*modules} <= {*sys.modules}:
        for module in modules:
            importlib.import_module(module)
        gc.collect()
        gc.freeze()  # a child that collects garbage would copy all that memory


def _prepare(request: dict[str, Any], fds: list[int], path: list[str]) -> Callable[[], object]:
    """Make this process what a new interpreter would be. Return its program."""
    if request["session"]:
        os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    if request["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for signum in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    _open_streams()
    words = request["words"]
    while words[0] == "-W":
        warnings.simplefilter(words[1])
        sys.warnoptions.append(words[1])
        words = words[2:]
    option, program = (words[0], words[1]) if words[0] in ("-m", "-c") else ("", words[0])
    first = {"-m": os.getcwd(), "-c": ""}.get(option, str(Path(program).resolve().parent))
    sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *filter(None, path)]
    sys.argv = [option or program, *words[2 if option else 1 :]]
    return partial(_call, option, program)


def _call(option: str, program: str) -> None:
    global _status
    main = vars(sys.modules["__main__"])
    for name in ("sys", "base", "serve"):
        del main[name]
    try:
        if option == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        elif option == "-c":
            exec(compile(program, "<string>", "exec"), main)
        else:
            main["__file__"] = program
            exec(compile(Path(program).read_bytes(), program, "exec"), main)
        _status = 0
    except SystemExit as error:
        _status = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    except BaseException as error:
        _status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        raise


_status: int | None = None
"""The exit status of a child, once its program has ended; minus a signal's number if a signal is to end it."""


def _end_at_once() -> None:
    """End a child before the interpreter destroys all modules: that is nine tenths of its time.

    Its threads have ended, and its other exit functions have run. With ``-W error`` the interpreter destroys all, and
    finds what is still open.
    """
    if _status is None or sys.warnoptions:
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # the interpreter reports it
    if _status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    os._exit(_status & 0xFF)


def _open_streams() -> None:
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        former = getattr(sys, name)
        stream = io.TextIOWrapper(
            os.fdopen(number, "wb" if number else "rb", 0 if number and is_unbuffered else -1, closefd=False),
            codecs.lookup(encoding or former.encoding).name,
            "backslashreplace" if number == 2 else errors or former.errors,
            line_buffering=number == 2 or os.isatty(number),
            write_through=bool(number) and is_unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
