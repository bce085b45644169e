"""The command that ``shedlock run`` or ``lead`` starts: its process, its signals, the terminal. For Unix only."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNALLED = 128

# What a command finds in its environment
LOCK_NAME = "SHEDLOCK_LOCK_NAME"
FENCING_TOKEN = "SHEDLOCK_FENCING_TOKEN"
TERM = "SHEDLOCK_TERM"

_IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}  # at its start; a command must not inherit that
_TO_THE_COMMAND_ALONE = {signal.SIGUSR1, signal.SIGUSR2}
"""They end processes without a handler for them, such as other members of the command's process group."""
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
_HARMLESS = {signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, getattr(signal, "SIGINFO", signal.SIGURG)}
_COERCED = {"C.UTF-8", "C.utf8", "UTF-8"}
"""What Python sets LC_CTYPE to at its start if no locale is set, as under cron (PEP 538)."""
_OF_JOB_CONTROL = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGCONT, signal.SIGTTIN, signal.SIGTTOU}
_NOT_ENDING = _IGNORED_BY_PYTHON | _TO_THE_COMMAND_ALONE | _FAULTS | _HARMLESS | _OF_JOB_CONTROL | {signal.SIGKILL}

ENDING: Set[int] = signal.valid_signals() - _NOT_ENDING
"""All that would end this process and can be caught: SIGTERM, Ctrl-C, SIGALRM, SIGXCPU, real-time signals, …"""


class CannotStart(Exception):
    """The command cannot be started. ``code`` is the exit code that shells have for it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def find_program(name: str) -> str:
    """The path of the program ``name``, found as a shell finds it.

    :raises CannotStart: there is none, or it cannot be executed.
    """
    path = shutil.which(name)
    if path is not None:
        return path
    if shutil.which(name, mode=os.F_OK) or (os.sep in name and os.path.isdir(name)):
        raise CannotStart(f"not executable: {name}", NOT_EXECUTABLE)
    raise CannotStart(f"command not found: {name}", NOT_FOUND)


def _is_text(program: str) -> bool:
    """Whether it can be a script of the shell, and not a program for another machine."""
    with open(program, "rb") as file:
        return b"\0" not in file.read(128)


def _is_locale_coerced() -> bool:
    """Whether Python has set LC_CTYPE for this process, and not its parent. False where the system does not tell."""
    if os.environ.get("LC_CTYPE") not in _COERCED:
        return False
    try:
        with open("/proc/self/environ", "rb") as file:
            return not any(line.startswith(b"LC_CTYPE=") for line in file.read().split(b"\0"))
    except OSError:
        return False


class Child:
    """The running command, with this process's standard streams and the signal mask ``mask``.

    It leads a process group of its own, whose number is ``pid``, too, so that a whole pipeline can be ended. Only the
    main thread may use this object.

    :param variables: what it finds in its environment besides that of this process; None: a variable that it must not
        have, such as that of an enclosing run.
    :raises CannotStart: the system refuses to execute it.
    """

    stopped_by: int | None = None
    """The signal that stopped the command, as :meth:`exit_code` has found it. Its reader sets it to None."""

    def __init__(self, program: str, command: Sequence[str], variables: Mapping[str, object], mask: Set[int]) -> None:
        self._exit_code: int | None = None
        unwanted = {*variables, "LC_CTYPE"} if _is_locale_coerced() else variables
        environ = {name: value for name, value in os.environ.items() if name not in unwanted}
        environ |= {name: str(value) for name, value in variables.items() if value is not None}

        def spawn(path: str, words: Sequence[str]) -> int:
            return os.posix_spawn(
                path, list(words), environ, setsigmask=mask, setsigdef=_IGNORED_BY_PYTHON, setpgroup=0
            )

        try:
            try:
                self.pid = spawn(program, command)
            except OSError as error:
                if error.errno != errno.ENOEXEC or not _is_text(program):
                    raise
                self.pid = spawn("/bin/sh", ["sh", program, *command[1:]])  # a script without "#!", as execvp() runs it
        except OSError as error:  # no right to, no interpreter, no such format, too many arguments
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            raise CannotStart(f"cannot execute {command[0]}: {error.strerror}", code) from None

    def exit_code(self, *, wait: bool = False) -> int | None:
        """The exit code, 128 + N if signal N killed the command; None while it runs.

        Reaps the command, and orphans that the kernel has made children of this process. PID 1 gets all orphans,
        another subreaper those of its descendants. Of the latter only members of the command's group are reaped,
        because a provider or its driver may have started other children.
        """
        own_options = 0 if wait else os.WNOHANG | os.WUNTRACED
        orphans = -1 if os.getpid() == 1 else -self.pid
        for children, options in ((self.pid, own_options), (orphans, os.WNOHANG)):
            with suppress(ChildProcessError):
                while (ended := os.waitpid(children, options)) != (0, 0):
                    pid, status = ended
                    if pid != self.pid or self._exit_code is not None:
                        continue
                    if os.WIFSTOPPED(status):
                        self.stopped_by = os.WSTOPSIG(status)
                    else:
                        code = os.waitstatus_to_exitcode(status)
                        self._exit_code, self.stopped_by = code if code >= 0 else SIGNALLED - code, None
        return self._exit_code

    def pass_on(self, number: int) -> None:
        """Send a signal that this process received to the command, and to its group where others expect that."""
        if number != signal.SIGCHLD:
            self.send(number, to_group=number not in _TO_THE_COMMAND_ALONE)
        if number == signal.SIGCONT:
            self.stopped_by = None

    def send(self, number: int, *, to_group: bool = True) -> None:
        """Send a signal to every process of the command's group, or to the command alone."""
        with suppress(ProcessLookupError, PermissionError):
            if to_group and self.exists():
                os.killpg(self.pid, number)
                return
        if self.exit_code() is None:  # not waited for, so the kernel has not reused the number
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)  # this signal is for the command alone, or it has moved to another group

    def exists(self) -> bool:
        """Whether the command or another process of its group runs."""
        if self.exit_code() is None:
            return True
        try:
            os.killpg(self.pid, 0)  # the kernel does not reuse the number while one process of the group is left
        except ProcessLookupError:
            return False
        except PermissionError:  # what is left of the group runs as another user
            return True
        return True

    def kill(self) -> None:
        """Kill the group, and wait until the command has ended."""
        self.send(signal.SIGKILL)
        self.exit_code(wait=True)


class KillSwitch:
    """Kills the command's process group when this process dies, however it dies.

    A shell waits for the end of a pipe whose other end only this process has. Without ``/bin/sh`` there is none.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        # In a group of its own, the shell gets no signal of a terminal, or for the group of this process.
        script = 'trap "" HUP INT QUIT TERM; read -r group && { read -r end || kill -s KILL -- "-$group"; }'
        reader, self._writer = os.pipe()
        nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        streams: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, reader, 0), *nowhere]
        try:
            self._pid = os.posix_spawn(
                "/bin/sh", ["sh", "-c", script], os.environ, file_actions=streams, setpgroup=0, setsigmask=[]
            )
        except OSError:
            pass
        finally:
            os.close(reader)

    def arm(self, group: int) -> None:
        """Name the process group that is to be killed."""
        with suppress(BrokenPipeError):  # the shell was killed, or there is none
            os.write(self._writer, f"{group}\n".encode())

    def disarm(self) -> None:
        """Call this when the group has ended: the kernel may reuse its number."""
        if self._pid is not None:
            with suppress(ChildProcessError):  # reaped with the orphans
                if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                    os.kill(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)
        os.close(self._writer)  # not before: the shell would take it for the death of this process


def listen(on_signal: Callable[[int], None]) -> Set[int]:
    """Block the signals of this process, and call ``on_signal`` with each, in another thread: none is lost.

    Call this before other threads start: threads inherit the mask. Ignored signals, as under nohup(1), stay ignored.

    :returns: the former signal mask, which a child needs.
    """
    for number in (signal.SIGCHLD, signal.SIGCONT):
        # A handler keeps the kernel from ignoring them. It is never called: the signals are blocked.
        signal.signal(number, lambda number, frame: None)
    wanted = {*ENDING, *_TO_THE_COMMAND_ALONE, signal.SIGTSTP, signal.SIGCHLD, signal.SIGCONT}
    numbers = {number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN}
    # SIGTTOU: the kernel must not stop this process when it takes the terminal back from the command.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*numbers, signal.SIGTTOU})

    def wait() -> None:
        while True:
            on_signal(signal.sigwait(numbers))

    threading.Thread(target=wait, name="shedlock-signals", daemon=True).start()
    return before


def stop(process: int, number: int) -> None:
    """Stop this process, or with ``process=0`` its group, by a signal, until a shell continues it.

    Returns at once where no shell could: the kernel then ignores the signal.
    """
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(process, number)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def move_terminal(giver: int, taker: int) -> bool | None:
    """Make the process group ``taker`` the foreground of the controlling terminal, if ``giver`` is that now.

    False: it is not. None: this process has no terminal. It does not matter where the standard streams go.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None
    try:
        is_there = os.tcgetpgrp(terminal) == giver
        if is_there:
            os.tcsetpgrp(terminal, taker)
        return is_there
    except OSError:  # the terminal was closed, or the group has ended
        return False
    finally:
        os.close(terminal)
