"""`shedlock run` and signals, at each moment at which one can come."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cli.rig import take
from tests.cli.runs import Runs
from tests.cli.terminal import PROGRAM, command
from tests.guides.examples.scripts import PROJECT
from tests.support.polling import wait_until
from tests.support.processes import descendants, is_running

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

# Writes each signal that it gets, and ends some time after the first.
TRAPS = f"""
import os, signal, sys, time
def trap(number, frame): os.write(1, f"got {{signal.Signals(number).name}}\\n".encode()); got.append(number)
got = []
for number in {[int(number) for number in SIGNALS]}: signal.signal(number, trap)
os.write(1, b"ready\\n")
while not got: time.sleep(0.01)
for _ in range(30): time.sleep(0.01)
sys.exit(33)
"""
SLEEPS = "import time; print('ready', flush=True); time.sleep(60)"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_passed_on_once_and_the_command_is_waited_for(runs: Runs, number: signal.Signals) -> None:
    process = runs.start("job", "--at-most", "1m", python=TRAPS)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert runs.end(process) == (33, f"got {number.name}\n", "")
    assert not runs.is_held("job")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_dies_of_it(runs: Runs, number: signal.Signals) -> None:
    script = "sleep 50 | { echo ready; sleep 60; }"
    process = runs.start("job", "--at-most", "1m", command=["sh", "-c", script])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    # Their standard output ends only when all members of the pipeline have ended.
    assert runs.end(process) == (128 + number, "", "")
    assert not runs.is_held("job")


# What ends a process that does not know it, but for faults of its own.
OTHER_ENDS = [
    signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU, signal.SIGABRT,
    *(
        getattr(signal, name)
        for name in ("SIGIO", "SIGPWR", "SIGSTKFLT", "SIGRTMIN", "SIGRTMAX")
        if hasattr(signal, name)
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", OTHER_ENDS)
def test_whatever_would_kill_shedlock_ends_the_command(runs: Runs, number: int) -> None:
    script = "sleep 50 | { echo ready; sleep 60; }"
    process = runs.start("job", "--at-most", "1m", command=["sh", "-c", script], cwd=runs.directory)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert runs.end(process) == (128 + number, "", "")
    assert not runs.is_held("job")


def test_what_is_ignored_stays_ignored(runs: Runs) -> None:
    """As under nohup."""
    program = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); {PROGRAM}"
    process = runs.start("job", "--at-most", "1m", python=SLEEPS, program=program)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert runs.end(process)[0] == 128 + signal.SIGTERM


def test_the_command_inherits_no_signal_mask_and_nothing_that_python_ignores(runs: Runs) -> None:
    _, out, _ = runs.run("job", "--at-most", "1m", command=["cat", "/proc/self/status"])
    status = dict(line.split(":\t", 1) for line in out.splitlines() if ":\t" in line)
    assert int(status["SigBlk"], 16) == 0
    ignored = int(status["SigIgn"], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGINT - 1))


def test_a_parent_that_ignores_sigchld(runs: Runs) -> None:
    """The kernel would then take the exit code away."""
    program = f"import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); {PROGRAM}"
    assert runs.run("job", "--at-most", "1m", python="raise SystemExit(3)", program=program)[0] == 3


def test_while_waiting_for_the_lock(runs: Runs) -> None:
    take(runs.provider, "job", holder="other")
    program = (
        "from shedlock_py.cli.guarded import Guarded\npause = Guarded._pause\n"
        f"Guarded._pause = lambda *a: (print('waiting', flush=True), pause(*a))[1]\n{PROGRAM}"
    )
    process = runs.start("job", "--at-most", "1m", "--wait", "1h", python="print('ran')", program=program)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.terminate()
    code, out, err = runs.end(process)
    assert (code, out.replace("waiting\n", ""), err) == (143, "", "")


STORE = "from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider as It"
AT = {
    "while the store is asked": f"{STORE}; name = 'acquire'",
    "before the command is started": "from shedlock_py.cli import guarded as It; name = 'environment'",
    "while it is started": "import os as It; name = 'posix_spawn'",
    "before it is waited for": "from shedlock_py.cli.guarded import Guarded as It; name = '_watch'",
    "while the lock is released": f"{STORE}; name = 'release'",
}


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("moment", AT)
def test_at_the_worst_moment(runs: Runs, moment: str, side: str) -> None:
    """The process sends itself SIGTERM just before, or just after, some function of it is called."""
    program = (
        f"import os\n{AT[moment]}\nfunction = getattr(It, name)\n"
        "def around(*args, **options):\n"
        f"    {'os.kill(os.getpid(), 15)' if side == 'before' else 'pass'}\n"
        "    result = function(*args, **options)\n"
        f"    {'os.kill(os.getpid(), 15)' if side == 'after' else 'pass'}\n"
        f"    return result\nsetattr(It, name, around)\n{PROGRAM}"
    )
    if moment == "while the lock is released":  # the command has ended: its exit code counts
        expected, python = (5, "ran\n"), "print('ran'); raise SystemExit(5)"
    else:
        expected, python = (143, ""), "import time; time.sleep(20); print('ran')"
    if (moment, side) == ("before it is waited for", "after"):
        expected, python = (5, ""), "raise SystemExit(5)"
    began = time.monotonic()
    code, out, err = runs.run("job", "--at-most", "1m", python=python, program=program)
    assert ((code, out), err) == (expected, "")
    assert time.monotonic() < began + 15
    assert not runs.is_held("job")


def test_a_signal_before_the_start_keeps_the_command_from_starting(runs: Runs) -> None:
    program = (
        "import os, threading\nfrom shedlock_py.cli.guarded import Guarded\n"
        f"{STORE}\nacquire, spawn, heard, was_heard = It.acquire, os.posix_spawn, Guarded._heard, threading.Event()\n"
        "Guarded._heard = lambda *args: (heard(*args), was_heard.set())\n"
        "It.acquire = lambda *args: (acquire(*args), os.kill(os.getpid(), 15), was_heard.wait(10))[0]\n"
        f"os.posix_spawn = lambda *args, **options: (print('started'), spawn(*args, **options))[1]\n{PROGRAM}"
    )
    assert runs.run("job", "--at-most", "1m", python="", program=program) == (143, "", "")
    record = runs.provider.record("job")
    assert record is not None  # it was granted
    assert not record.is_held


def test_a_store_that_never_answers_is_not_waited_for_twice(runs: Runs) -> None:
    runs.path("mine.py").write_text(
        "import time\n"
        "class Provider:\n"
        "    def acquire(self, request): print('asked', flush=True); time.sleep(60)\n"
        "    def release(self, lease): return True\n"
        "provider = Provider()\n"
    )
    process = runs.start("job", "--at-most", "1m", python="", variables={"SHEDLOCK_STORE": "mine:provider"})
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"

    def ended() -> bool:
        process.send_signal(signal.SIGINT)
        return process.poll() is not None

    wait_until(ended, what="the end of the run, after several SIGINT")
    assert process.returncode == 130


# On a terminal


class OnTerminal:
    """`shedlock run` as the leader of a session on a terminal of its own."""

    def __init__(self, side: int, pid: int) -> None:
        self.side, self.pid = side, pid
        self.text = ""

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + 20
        while text not in self.text:
            assert time.monotonic() < deadline, f"{text!r} not seen in {self.text!r}"
            if select.select([self.side], [], [], 0.1)[0]:
                self.text += os.read(self.side, 4096).decode()

    def ask_until(self, text: str, question: str) -> None:
        """Type a question again and again until the reply has some text."""

        def is_there() -> bool:
            self.type(question)
            while select.select([self.side], [], [], 0.3)[0]:
                self.text += os.read(self.side, 4096).decode()
            return text in self.text

        wait_until(is_there, timeout=20, what=f"{text!r} from {question!r}")

    def type(self, text: str) -> None:
        os.write(self.side, text.encode())

    def end(self) -> int:
        with open(self.side, "rb", buffering=0, closefd=False) as reader:
            try:
                while data := reader.read(4096):
                    self.text += data.decode()
            except OSError:  # the other side is closed
                pass
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


@contextmanager
def on_terminal(runs: Runs, python: str, *options: str, script: str = "", shell: str = "") -> Iterator[OnTerminal]:
    """The command is `python`'s code or a shell `script`; it is started by hand where there is a `shell`."""
    code = [sys.executable, "-c", python] if not script else ["sh", "-c", script]
    words = command("run", "job", "--store", runs.store, *(options or ("--at-most", "1m")), "--", *code)
    pid, side = pty.fork()
    if pid == 0:
        os.chdir(runs.directory)
        os.environ["PYTHONPATH"] = str(PROJECT)
        if shell:
            runs.path("start").write_text(f"{shlex.join(words)}; echo ended\n")
            os.environ["PS1"] = "$ "
            os.execvp(shell, [shell, "--norc", "--noprofile", "-i"])
        os.execv(sys.executable, words)
    terminal = OnTerminal(side, pid)
    try:
        yield terminal
    finally:
        if terminal.pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal.side)


# Counts Ctrl-C, and ends at the second.
COUNTS = """
import os, signal, time
count = []
def trap(number, frame): count.append(1); os.write(1, b"got %d\\n" % len(count))
signal.signal(signal.SIGINT, trap)
os.write(1, b"ready\\n")
def pause():
    until = time.monotonic() + 0.3
    while time.monotonic() < until: time.sleep(0.01)
while not count: time.sleep(0.01)
pause(); os.write(1, b"first %d\\n" % len(count))
while len(count) < 2: time.sleep(0.01)
pause(); os.write(1, b"second %d\\n" % len(count))
os._exit(21)
"""


def test_ctrl_c_reaches_the_command_once_each_time(runs: Runs) -> None:
    with on_terminal(runs, COUNTS) as terminal:
        terminal.read_until("ready")
        os.write(terminal.side, b"\x03")
        terminal.read_until("first 1")
        os.write(terminal.side, b"\x03")
        terminal.read_until("second 2")
        assert terminal.end() == 21
    assert not runs.is_held("job")


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not tell who sent a signal")
def test_sigint_that_is_no_ctrl_c_is_passed_on_by_a_run_on_a_terminal(runs: Runs) -> None:
    with on_terminal(runs, COUNTS) as terminal:
        terminal.read_until("ready")
        os.kill(terminal.pid, signal.SIGINT)
        terminal.read_until("first 1")
        os.kill(terminal.pid, signal.SIGINT)
        terminal.read_until("second 2")
        assert terminal.end() == 21


def test_ctrl_c_that_ends_the_command(runs: Runs) -> None:
    with on_terminal(
        runs, "import signal, time; signal.signal(2, signal.SIG_DFL); print('ready'); time.sleep(60)"
    ) as it:
        it.read_until("ready")
        os.write(it.side, b"\x03")
        assert it.end() == 130
        assert "Traceback" not in it.text
    assert not runs.is_held("job")


def test_a_terminal_that_is_closed_hangs_up_the_command(runs: Runs) -> None:
    python = (
        "import os, signal, time\n"
        f"def trap(number, frame): open({str(runs.path('hung-up'))!r}, 'w').write('hung up'); os._exit(3)\n"
        "signal.signal(signal.SIGHUP, trap)\n"
        "os.write(1, b'ready\\n')\n"
        "time.sleep(60)"
    )
    with on_terminal(runs, python) as terminal:
        terminal.read_until("ready")
        os.close(terminal.side)
        terminal.side = os.open(os.devnull, os.O_RDONLY)
        assert terminal.end() == 3
    assert runs.wait_for("hung-up") == "hung up"
    assert not runs.is_held("job")


def test_a_command_on_a_terminal_can_read_from_it_and_is_ended_when_the_lease_is_lost(runs: Runs) -> None:
    python = "import time; print('hello', input()); time.sleep(60)"
    with on_terminal(runs, python, "--at-most", "3s") as terminal:
        os.write(terminal.side, b"world\n")
        terminal.read_until("hello world")
        assert terminal.end() == 75
        assert "was lost: the command takes longer than --at-most 3.0s" in terminal.text


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")


def listens(pid: int) -> bool:
    """Whether it has signals as messages: its main thread does not get them."""
    with suppress(OSError):
        status = dict(re.findall(r"(\w+):\t(.*)", Path(f"/proc/{pid}/status").read_text()))
        is_blocked = int(status["SigBlk"], 16) & 1 << (signal.SIGTSTP - 1)
        return "python" in status["Name"] and bool(is_blocked)  # a shell that starts one blocks signals, too
    return False


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")

PIPELINE = "echo $PPID > parent; sh -c 'echo $$ > pid; echo ready >&2; exec sleep 60' | cat"


@needs_bash
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_pipeline_on_a_terminal_is_ended_wholly_by_a_signal(runs: Runs, number: int) -> None:
    with on_terminal(runs, "", script=PIPELINE, shell="bash") as terminal:
        terminal.read_until("$ ")
        terminal.type("sh ./start\n")
        terminal.read_until("ready")
        os.kill(int(runs.wait_for("parent")), number)
        terminal.read_until("ended")
        assert not runs.is_held("job")
        assert_gone(runs)


@needs_bash
def test_a_pipeline_on_a_terminal_is_ended_wholly_when_the_lease_is_lost(runs: Runs) -> None:
    """Its first half ignores SIGTERM, so that it outlives the shell by the grace period."""
    script = f"trap '' TERM; {PIPELINE}"
    with on_terminal(runs, "", "--at-most", "2s", "--grace", "300ms", script=script, shell="bash") as terminal:
        terminal.read_until("$ ")
        terminal.type("sh ./start\n")
        terminal.read_until("ready")
        terminal.read_until("ended")
        assert_gone(runs)


def assert_gone(runs: Runs) -> None:
    pid = int(runs.wait_for("pid"))
    wait_until(lambda: not is_running(pid), timeout=5, what="the first half of the pipeline gone")


def test_a_command_that_reads_from_the_terminal_gets_ctrl_c_once_each_time(runs: Runs) -> None:
    """It is in the foreground from its first read on; what is typed reaches it, and nothing twice."""
    python = COUNTS.replace('os.write(1, b"ready', 'print("read", input(), flush=True); os.write(1, b"ready')
    with on_terminal(runs, python) as terminal:
        terminal.type("one line\n")
        terminal.read_until("read one line")
        terminal.read_until("ready")
        terminal.type("\x03")
        terminal.read_until("first 1")
        terminal.type("\x03")
        terminal.read_until("second 2")
        assert terminal.end() == 21
    assert not runs.is_held("job")


def test_a_run_inside_a_run_can_read_from_the_terminal(runs: Runs) -> None:
    words = command("run", "inner", "--store", runs.store, "--at-most", "1m", "--", sys.executable, "-c", ECHOES)
    with on_terminal(runs, "", script=f"exec {shlex.join(words)}") as terminal:
        terminal.read_until("ready")
        terminal.type("one\n")
        terminal.read_until("read one")
        terminal.type("two\n")
        assert terminal.end() == 0
        assert "read two" in terminal.text
    assert not runs.is_held("job")
    assert not runs.is_held("inner")


def test_ctrl_z_where_no_shell_could_continue_it(runs: Runs) -> None:
    """As in a container with a terminal: the kernel stops nothing there, and neither do we."""
    with on_terminal(runs, "import time; print('ready', flush=True); time.sleep(1); print('done')") as terminal:
        terminal.read_until("ready")
        terminal.type("\x1a")
        assert terminal.end() == 0
        assert "done" in terminal.text


# Ends after two lines that are typed.
PARENT = "import os; open('parent', 'w').write(str(os.getppid()))"
ECHOES = "print('ready', flush=True); print('read', input(), flush=True); print('read', input(), flush=True)"


@needs_bash
@pytest.mark.parametrize("is_read_before", [False, True])
def test_ctrl_z_and_fg_in_a_shell(runs: Runs, is_read_before: bool) -> None:
    """Whether the command has the terminal when Ctrl-Z comes or not: both are stopped, both go on."""
    python = ECHOES if is_read_before else f"import time; print('up', flush=True); time.sleep(1); {ECHOES}"
    python = f"{PARENT}; {python}"
    with on_terminal(runs, python, shell="bash") as terminal:
        terminal.read_until("$ ")
        terminal.type("sh ./start\n")
        terminal.read_until("ready" if is_read_before else "up")
        if is_read_before:
            terminal.type("one\n")
            terminal.read_until("read one")
        terminal.type("\x1a")
        terminal.read_until("Stopped")
        wait_until(lambda: is_stopped(int(runs.wait_for("parent"))), what="the run stopped, too")
        terminal.type("echo still $((40 + 2))\n")  # the shell has the terminal
        terminal.read_until("still 42")
        terminal.type("fg\n")
        if not is_read_before:
            terminal.read_until("ready")
            terminal.type("one\n")
            terminal.read_until("read one")
        terminal.type("two\n")
        terminal.read_until("read two")
        wait_until(lambda: not runs.is_held("job"), what="the lock released")
        terminal.type("echo back $((50 + 2))\n")
        terminal.read_until("back 52")
        terminal.type("exit\n")
        terminal.end()


@needs_bash
def test_a_job_in_the_background_that_reads_is_stopped_and_goes_on_in_the_foreground(runs: Runs) -> None:
    with on_terminal(runs, ECHOES, shell="bash") as terminal:
        terminal.read_until("$ ")
        terminal.type("sh ./start &\n")
        terminal.read_until("ready")
        wait_until(lambda: runs.is_held("job"))

        terminal.ask_until("Stopped", "jobs\n")
        terminal.type("fg\n")
        terminal.type("one\ntwo\n")
        terminal.read_until("read two")
        wait_until(lambda: not runs.is_held("job"), what="the lock released")
        terminal.type("exit\n")
        terminal.end()


@needs_bash
def test_a_lease_that_ended_while_both_were_stopped_ends_the_command(runs: Runs) -> None:
    python = f"{PARENT}; import time; print('ready', flush=True); time.sleep(60)"
    with on_terminal(runs, python, "--at-most", "2s", shell="bash") as terminal:
        terminal.read_until("$ ")
        terminal.type("sh ./start\n")
        terminal.read_until("ready")
        terminal.type("\x1a")
        terminal.read_until("Stopped")
        wait_until(lambda: is_stopped(int(runs.wait_for("parent"))), what="the run stopped, too")
        wait_until(lambda: not runs.is_held("job"), what="the end of the lease")
        terminal.type("fg\n")
        terminal.read_until("was lost")
        terminal.type("echo back $((50 + 2))\n")
        terminal.read_until("back 52")
        terminal.type("exit\n")
        terminal.end()


@needs_bash
def test_ctrl_z_while_the_lock_is_waited_for(runs: Runs) -> None:
    lease = take(runs.provider, "job")
    with on_terminal(runs, "print('ran')", "--at-most", "1m", "--wait", "1h", shell="bash") as terminal:
        terminal.read_until("$ ")
        terminal.type("sh ./start\n")

        def listening() -> list[int]:
            return list(filter(listens, descendants(terminal.pid)))

        wait_until(listening, timeout=20, what="a run that listens")
        (run,) = listening()
        terminal.type("\x1a")
        terminal.read_until("Stopped")  # the shell between them; the run stops a moment later
        wait_until(lambda: is_stopped(run), what="the run stopped, too")
        runs.provider.release(lease)
        terminal.type("fg\n")
        terminal.read_until("ran")
        terminal.read_until("ended")
        terminal.type("exit\n")
        terminal.end()


# As the process that gets orphans


def namespaces() -> list[str]:
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("a PID namespace needs unshare(1), and root")
    return words


def test_as_pid_1_it_reaps_orphans_while_the_command_runs(runs: Runs) -> None:
    """Of any session: nobody else does."""
    python = """
import os, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.write(writer, str(pid).encode())
    os._exit(0)
os.wait()
orphan, until = os.read(reader, 100).decode(), time.monotonic() + 20
while os.path.exists(f"/proc/{orphan}") and time.monotonic() < until: time.sleep(0.02)
print(os.getppid(), "left" if os.path.exists(f"/proc/{orphan}") else "reaped")
"""
    assert runs.run("job", "--at-most", "1m", python=python, under=namespaces()) == (0, "1 reaped\n", "")


def test_as_pid_1_it_does_not_pay_the_grace_for_an_orphan_that_has_ended(runs: Runs) -> None:
    """The shell ends at once, the rest of the pipeline a moment later: then nothing is left to wait for."""
    script = "sh -c 'trap \"sleep 0.3; exit\" TERM; echo up; while :; do sleep 0.1; done' & exec sleep 60"
    process = runs.start("job", "--at-most", "1s", "--grace", "1h", command=["sh", "-c", script], under=namespaces())
    assert process.wait(20) == 75
