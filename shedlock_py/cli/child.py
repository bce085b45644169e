"""The command that ``shedlock run`` guards, as a process. Only the main thread may use it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress

from shedlock_py.cli.signals import TO_THE_COMMAND_ALONE
from shedlock_py.lease import Lease

NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNALLED = 128

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # at its start; a command must not inherit that


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


def environment(lease: Lease) -> dict[str, str]:
    """This process's environment, with the name of the lock and its fencing token."""
    environ = {name: value for name, value in os.environ.items() if name != "SHEDLOCK_FENCING_TOKEN"}
    environ["SHEDLOCK_LOCK_NAME"] = lease.name
    if lease.fencing_token is not None:
        environ["SHEDLOCK_FENCING_TOKEN"] = str(lease.fencing_token)
    return environ


class Child:
    """The running command, with this process's standard streams and the signal mask ``mask``.

    It leads a process group of its own, ``group``, so that a whole pipeline can be ended.

    :raises CannotStart: the system refuses to execute it.
    """

    def __init__(self, program: str, command: Sequence[str], environ: Mapping[str, str], mask: Set[int]) -> None:
        self._exit_code: int | None = None
        self._stopped_by: int | None = None
        try:
            self.group = self._pid = os.posix_spawn(
                program, list(command), environ, setsigmask=mask, setsigdef=_IGNORED_BY_PYTHON, setpgroup=0
            )
        except OSError as error:  # no right to, no interpreter, no such format, too many arguments
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            raise CannotStart(f"cannot execute {command[0]}: {error.strerror}", code) from None

    def exit_code(self) -> int | None:
        """The exit code, 128 + N if signal N killed the command; None while it runs."""
        self._reap()
        return self._exit_code

    def stopped_by(self) -> int | None:
        """The signal that stopped the command, reported once; else None."""
        self._reap()
        number, self._stopped_by = self._stopped_by, None
        return number

    def pass_on(self, number: int) -> None:
        """Send a signal that this process received to the command, and to its group where others expect that."""
        if number in TO_THE_COMMAND_ALONE:
            self._send(number)
        elif number != signal.SIGCHLD:
            self.send_to_group(number)
            if number == signal.SIGCONT:
                self._stopped_by = None

    def send_to_group(self, number: int) -> None:
        """Send a signal to every process of the command's group."""
        if self.exists():
            try:
                os.killpg(self.group, number)
            except (ProcessLookupError, PermissionError):
                self._send(number)  # the command has moved to another group

    def exists(self) -> bool:
        """Whether the command or another process of its group runs."""
        if self.exit_code() is None:
            return True
        try:
            os.killpg(self.group, 0)  # the kernel does not reuse the number while one process of the group is left
        except ProcessLookupError:
            return False
        except PermissionError:  # what is left of the group runs as another user
            return True
        return True

    def kill(self) -> None:
        """Kill the group, and wait until the command has ended."""
        self.send_to_group(signal.SIGKILL)
        if self.exit_code() is None:
            self._exit_code = _exit_code(os.waitpid(self._pid, 0)[1])

    def _send(self, number: int) -> None:
        if self.exit_code() is None:  # not waited for, so the kernel has not reused the number
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, number)

    def _reap(self) -> None:
        """Reap the command, and orphans that the kernel has made children of this process.

        PID 1 gets all orphans, another subreaper those of its descendants. Of the latter only members of the command's
        group are reaped, because a provider or its driver may have started other children.
        """
        orphans = -1 if os.getpid() == 1 else -self.group
        for children, options in ((self._pid, os.WNOHANG | os.WUNTRACED), (orphans, os.WNOHANG)):
            with suppress(ChildProcessError):
                while True:
                    pid, status = os.waitpid(children, options)
                    if pid == 0:
                        break
                    if pid == self._pid and self._exit_code is None:
                        self._note(status)

    def _note(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            self._stopped_by = os.WSTOPSIG(status)
        else:
            self._exit_code, self._stopped_by = _exit_code(status), None


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else SIGNALLED - code
