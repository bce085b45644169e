"""The command that ``shedlock run`` or ``lead`` starts: its process, its signals, the terminal. Unix only."""

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

# Environment variables of a command
LOCK_NAME = "SHEDLOCK_LOCK_NAME"
FENCING_TOKEN = "SHEDLOCK_FENCING_TOKEN"
TERM = "SHEDLOCK_TERM"

_IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}  # since its start; a command must not inherit this
_TO_THE_COMMAND_ALONE = {signal.SIGUSR1, signal.SIGUSR2}
"""These signals end processes without a handler, for example other members of the command's process group."""
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
_HARMLESS = {signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, getattr(signal, "SIGINFO", signal.SIGURG)}
_COERCED = {"C.UTF-8", "C.utf8", "UTF-8"}
"""Values that Python gives LC_CTYPE at its start if no locale is set, for example under cron (PEP 538)."""
_OF_JOB_CONTROL = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGCONT, signal.SIGTTIN, signal.SIGTTOU}
_NOT_ENDING = _IGNORED_BY_PYTHON | _TO_THE_COMMAND_ALONE | _FAULTS | _HARMLESS | _OF_JOB_CONTROL | {signal.SIGKILL}

ENDING: Set[int] = signal.valid_signals() - _NOT_ENDING
"""All signals that end a process and can be caught: SIGTERM, Ctrl-C, SIGALRM, SIGXCPU, real-time signals, …"""


class CannotStart(Exception):
    """The command cannot be started. ``code`` is the exit code of shells for this."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def find_program(name: str) -> str:
    """Return the path of the program ``name``, with the search of a shell.

    :raises CannotStart: the program does not exist, or is not executable.
    """
    path = shutil.which(name)
    if path is not None:
        return path
    if shutil.which(name, mode=os.F_OK) or (os.sep in name and os.path.isdir(name)):
        raise CannotStart(f"not executable: {name}", NOT_EXECUTABLE)
    raise CannotStart(f"command not found: {name}", NOT_FOUND)


def _is_text(program: str) -> bool:
    """Return whether ``program`` can be a shell script. Otherwise it may be a binary for another machine."""
    with open(program, "rb") as file:
        return b"\0" not in file.read(128)


def _is_locale_coerced() -> bool:
    """Return whether Python itself has set LC_CTYPE, and not the parent process. False without /proc."""
    if os.environ.get("LC_CTYPE") not in _COERCED:
        return False
    try:
        with open("/proc/self/environ", "rb") as file:
            return not any(line.startswith(b"LC_CTYPE=") for line in file.read().split(b"\0"))
    except OSError:
        return False


class Child:
    """The running command, with this process's standard streams and the signal mask ``mask``.

    The command leads a process group of its own with the number ``pid``, so that a whole pipeline can be ended. Only
    the main thread may use this object.

    :param variables: added to this process's environment. A value of None removes the variable, for example the
        variable of an enclosing run.
    :raises CannotStart: the system refuses to execute the command.
    """

    stopped_by: int | None = None
    """The signal that stopped the command, set by :meth:`exit_code`. The reader sets it to None."""

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
        except OSError as error:  # no permission, no interpreter, unknown format, too many arguments
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            raise CannotStart(f"cannot execute {command[0]}: {error.strerror}", code) from None

    def exit_code(self, *, wait: bool = False) -> int | None:
        """Return the exit code, 128 + N if signal N killed the command, or None while it runs.

        Reaps the command, and orphans that the kernel made children of this process. PID 1 receives all orphans and
        reaps them all. Another subreaper receives the orphans of its descendants, and reaps only members of the
        command's group: a provider or its driver may have started other children.
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
        """Pass a signal of this process on to the command, and to the command's group if the signal is for groups."""
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
        if self.exit_code() is None:  # not reaped, so the kernel has not reused the number
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)  # the signal is for the command alone, or the command has changed its group

    def exists(self) -> bool:
        """Return whether the command or another process of its group runs."""
        if self.exit_code() is None:
            return True
        try:
            os.killpg(self.pid, 0)  # the kernel does not reuse the number while the group has a process
        except ProcessLookupError:
            return False
        except PermissionError:  # the group's processes run as another user
            return True
        return True

    def kill(self) -> None:
        """Kill the group, and wait until the command has ended."""
        self.send(signal.SIGKILL)
        self.exit_code(wait=True)


class KillSwitch:
    """Kills the command's process group when this process dies, also by SIGKILL.

    A shell waits for the end of a pipe. Only this process has the other end. Without ``/bin/sh`` nothing is killed.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        # A group of its own keeps signals of the terminal, and for the group of this process, from the shell.
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
        """Give the shell the process group to kill."""
        with suppress(BrokenPipeError):  # the shell was killed or never started
            os.write(self._writer, f"{group}\n".encode())

    def disarm(self) -> None:
        """Call this when the group has ended, because the kernel may reuse its number."""
        if self._pid is not None:
            with suppress(ChildProcessError):  # exit_code() reaped the shell with the orphans
                if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                    os.kill(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)
        os.close(self._writer)  # last: to the shell, this means that this process died


def listen(on_signal: Callable[[int], None]) -> Set[int]:
    """Block the signals of this process, and call ``on_signal`` with each signal in another thread: no signal is lost.

    Call this before other threads start, because threads inherit the mask. Ignored signals stay ignored, for example
    under nohup(1).

    :returns: the former signal mask, which a child needs.
    """
    for number in (signal.SIGCHLD, signal.SIGCONT):
        # The kernel drops these signals unless they have a handler. It is never called, as the signals are blocked.
        signal.signal(number, lambda number, frame: None)
    wanted = {*ENDING, *_TO_THE_COMMAND_ALONE, signal.SIGTSTP, signal.SIGCHLD, signal.SIGCONT}
    numbers = {number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN}
    # SIGTTOU would stop this process when it takes the terminal back from the command.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*numbers, signal.SIGTTOU})

    def wait() -> None:
        while True:
            on_signal(signal.sigwait(numbers))

    threading.Thread(target=wait, name="shedlock-signals", daemon=True).start()
    return before


def stop(process: int, number: int) -> None:
    """Stop this process by a signal until a shell continues it. ``process=0`` stops its group.

    Returns at once if no shell could continue it, because the kernel then ignores the signal.
    """
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(process, number)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def move_terminal(giver: int, taker: int) -> bool | None:
    """Make the process group ``taker`` the foreground of the controlling terminal, if ``giver`` is the foreground now.

    Return False if ``giver`` is not, and None if this process has no terminal. The standard streams do not matter.
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
