"""`shedlock run` and signals, at each moment at which one can come."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.rig import take
from tests.cli.runs import Runs
from tests.cli.terminal import PROGRAM, command
from tests.services.polling import wait_until

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
def on_terminal(runs: Runs, python: str, *options: str) -> Iterator[OnTerminal]:
    words = ["--store", runs.store, *(options or ("--at-most", "1m")), "--", sys.executable, "-c", python]
    pid, side = pty.fork()
    if pid == 0:
        os.execv(sys.executable, command("run", "job", *words))
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
