"""The server of :mod:`tests.support.forked`: each forked child runs a program as a new interpreter would."""

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
import sys
import termios
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

PRELOADED = [f"shedlock_py.cli.{name}" for name in ("app", "guarded", "leading", "pause", "show", "supervisor")]
PRELOADED += [
    "shedlock_py.election.async_elector",
    "shedlock_py.integrations.apscheduler",
    "shedlock_py.runtime.blocking",
]
PRELOADED += ["shedlock_py.providers.sqlalchemy", "shedlock_py.providers.redis", "shedlock_py.testing.forks"]
PRELOADED += [f"sqlalchemy.{name}" for name in ("orm", "ext.asyncio", "dialects.sqlite", "dialects.postgresql")]
PRELOADED += ["psycopg", "asyncpg", "aiosqlite", "tests.support.doubles", "tests.support.polling"]
PRELOADED += ["apscheduler.schedulers.background", "apscheduler.schedulers.asyncio", "apscheduler.triggers.cron"]
"""Modules that many programs import. If a program must not find them imported, start a new interpreter."""
_LARGEST_REQUEST = 200_000
_PR_SET_PDEATHSIG = 1


def serve(fd: int, path: list[str]) -> Callable[[], object]:
    """Fork a child for each request, until the tests close the connection. Return in the child only: its program."""
    atexit.register(_end_at_once)  # exit functions that register first run last
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
            if number != fd:  # a child has ended, or its exit status is not needed
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
                os._exit(0)
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
    """Make this process like a new interpreter. Return its program."""
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
    """End a child before the interpreter destroys all modules, which takes nine tenths of the time.

    Its threads have ended, and its other exit functions have run. With ``-W error`` the interpreter destroys
    everything, and so finds objects that are still open.
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
