"""`shedlock run` and signals, at each moment when a signal can come."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest

from shedlock_py.cli.child import KillSwitch
from tests.cli.harness import in_a_process, take
from tests.cli.runs import Runs
from tests.cli.terminal import PROGRAM
from tests.support.polling import wait_until
from tests.support.processes import descendants, is_running

pytestmark = in_a_process


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


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_passed_on_once_and_the_command_is_waited_for(runs: Runs, number: signal.Signals) -> None:
    process = runs.start_ready("job", "--at-most", "1m", python=TRAPS)
    process.send_signal(number)
    assert runs.end(process) == (33, f"got {number.name}\n", "")
    assert not runs.is_held()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_for_the_command_alone_ends_no_other_process_of_its_group(runs: Runs, number: signal.Signals) -> None:
    python = (
        "import signal, subprocess\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [{number:d}])\n"
        f"member = subprocess.Popen(['sh', '-c', 'echo ready; exec sleep 60'], "
        f"preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, [{number:d}]))\n"
        f"signal.sigwait([{number:d}]); member.terminate(); print(member.wait())"
    )
    process = runs.start_ready("job", "--at-most", "1m", python=python)
    process.send_signal(number)
    assert runs.end(process) == (0, f"{-signal.SIGTERM}\n", "")


# Signals that end a process without a handler, except signals for its own faults.
NAMES = ("TERM", "INT", "ALRM", "VTALRM", "PROF", "XCPU", "ABRT", "IO", "PWR", "STKFLT", "RTMIN", "RTMAX")
ENDING = [getattr(signal, f"SIG{name}") for name in NAMES if hasattr(signal, f"SIG{name}")]
ENDING[3:] = [pytest.param(number, marks=pytest.mark.slow("as the first three")) for number in ENDING[3:]]


@pytest.mark.parametrize("number", ENDING)
def test_whatever_would_kill_shedlock_ends_the_command(runs: Runs, number: int) -> None:
    script = "sleep 50 | { echo ready; sleep 60; }"
    process = runs.start_ready("job", "--at-most", "1m", words=["sh", "-c", script], cwd=runs.directory)
    process.send_signal(number)
    # Standard output ends only when all members of the pipeline have ended.
    assert runs.end(process) == (128 + number, "", "")
    assert not runs.is_held()


def test_what_is_ignored_stays_ignored(runs: Runs) -> None:
    """nohup ignores SIGHUP."""
    program = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); {PROGRAM}"
    python = "import time; print('ready', flush=True); time.sleep(60)"
    process = runs.start_ready("job", "--at-most", "1m", python=python, program=program)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert runs.end(process)[0] == 128 + signal.SIGTERM


def test_the_command_inherits_no_signal_mask_and_nothing_that_python_ignores(runs: Runs) -> None:
    _, out, _ = runs.run("job", "--at-most", "1m", words=["cat", "/proc/self/status"])
    status = dict(line.split(":\t", 1) for line in out.splitlines() if ":\t" in line)
    assert int(status["SigBlk"], 16) == 0
    ignored = int(status["SigIgn"], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGINT - 1))


def test_a_parent_that_ignores_sigchld(runs: Runs) -> None:
    """Then the kernel would take the exit code away."""
    program = f"import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); {PROGRAM}"
    assert runs.run("job", "--at-most", "1m", python="raise SystemExit(3)", program=program)[0] == 3


def test_sigterm_ends_the_wait_for_the_lock(runs: Runs) -> None:
    take(runs.provider, "job", holder="other")
    program = (
        "from shedlock_py.cli import guarded\nattempt = guarded.attempt\n"
        f"guarded.attempt = lambda *a, **o: (attempt(*a, **o), print('ready', flush=True))[0]\n{PROGRAM}"
    )
    process = runs.start_ready("job", "--at-most", "1m", "--wait", "1h", python="print('ran')", program=program)
    process.terminate()
    code, out, err = runs.end(process)
    assert (code, out.replace("ready\n", ""), err) == (143, "", "")


STORE = "from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider as It"
AT = {
    "during the request to the store": f"{STORE}; name = 'acquire'",
    "before the command is started": "from shedlock_py.cli import guarded as It; name = 'current_lease'",
    "while it is started": "import os as It; name = 'posix_spawn'",
    "before it is waited for": "from shedlock_py.cli.guarded import Guarded as It; name = 'supervise'",
    "while the lock is released": f"{STORE}; name = 'release'",
}


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("moment", AT)
def test_sigterm_at_the_worst_moment_ends_the_command_and_releases(runs: Runs, moment: str, side: str) -> None:
    """The process sends itself SIGTERM just before or just after a call of one of its functions."""
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
    elif (moment, side) == ("before it is waited for", "after"):
        expected, python = (5, ""), "raise SystemExit(5)"
    else:
        expected, python = (143, ""), "import time; time.sleep(20); print('ran')"
    code, out, err = runs.run("job", "--at-most", "1m", python=python, program=program)
    assert ((code, out), err) == (expected, "")
    assert not runs.is_held()


# SIGTERM comes during the acquire, and the run has received it when the acquire returns.
SIGNAL_IN_ACQUIRE = (
    "import os, threading\nfrom shedlock_py.cli.guarded import Guarded\n"
    f"{STORE}\nacquire, on_signal, received = It.acquire, Guarded.on_signal, threading.Event()\n"
    "Guarded.on_signal = lambda *args: (on_signal(*args), received.set())\n"
    f"It.acquire = lambda *args: (acquire(*args), os.kill(os.getpid(), 15), received.wait(10))[0]\n{PROGRAM}"
)


def test_a_signal_before_the_start_keeps_the_command_from_starting(runs: Runs) -> None:
    program = (
        "import os\nspawn = os.posix_spawn\n"
        f"os.posix_spawn = lambda *args, **options: (print('started'), spawn(*args, **options))[1]\n{SIGNAL_IN_ACQUIRE}"
    )
    assert runs.run("job", "--at-most", "1m", python="", program=program) == (143, "", "")
    assert not runs.record().is_held  # the lock was granted


def test_a_store_that_never_answers_is_not_waited_for_twice(runs: Runs) -> None:
    runs.use_provider(
        "import time\n"
        "class Provider:\n"
        "    def acquire(self, request): print('ready', flush=True); time.sleep(60)\n"
        "    def release(self, lease): return True\n"
        "provider = Provider()\n"
    )
    process = runs.start_ready("job", "--at-most", "1m", python="")

    def ended() -> bool:
        process.send_signal(signal.SIGINT)
        return process.poll() is not None

    wait_until(ended, what="the end of the run, after several SIGINT")
    assert process.returncode == 130


# As the process that adopts orphans


def namespaces() -> list[str]:
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("a PID namespace needs unshare(1), and root")
    return words


@pytest.mark.slow("starts an interpreter in a namespace")
def test_as_pid_1_it_reaps_orphans_while_the_command_runs(runs: Runs) -> None:
    """The run reaps orphans of any session, because no other process does."""
    python = """
import os, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if (pid := os.fork()) == 0:
        raise SystemExit
    os.write(writer, str(pid).encode())
    raise SystemExit
os.wait()
orphan, until = os.read(reader, 100).decode(), time.monotonic() + 20
while os.path.exists(f"/proc/{orphan}") and time.monotonic() < until: time.sleep(0.02)
print(os.getppid(), "left" if os.path.exists(f"/proc/{orphan}") else "reaped")
"""
    assert runs.run("job", "--at-most", "1m", python=python, under=namespaces()) == (0, "1 reaped\n", "")


@pytest.mark.slow("starts an interpreter in a namespace")
def test_as_pid_1_it_does_not_pay_the_grace_for_an_orphan_that_has_ended(runs: Runs) -> None:
    """The shell ends at once, and its pipeline a moment later. Then the run has nothing to wait for."""
    script = "sh -c 'trap \"sleep 0.3; exit\" TERM; echo up; while :; do sleep 0.1; done' & exec sleep 60"
    process = runs.start("job", "--at-most", "1s", "--grace", "1h", words=["sh", "-c", script], under=namespaces())
    assert process.wait(20) == 75


def test_a_kill_switch_whose_shell_was_stopped_keeps_nobody_waiting() -> None:
    before = descendants(os.getpid())
    switch = KillSwitch()
    (shell,) = set(descendants(os.getpid())) - set(before)
    os.kill(shell, signal.SIGSTOP)
    switch.arm(2**22 + 1)  # no process has this number
    switch.disarm()
    assert not is_running(shell)
