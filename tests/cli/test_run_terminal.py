"""`shedlock run` on a terminal: Ctrl-C, Ctrl-Z, and commands that read."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.harness import in_a_process, take
from tests.cli.runs import Runs
from tests.cli.terminal import Terminal, command
from tests.support.polling import wait_until
from tests.support.processes import descendants, is_running

pytestmark = in_a_process


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


def on_terminal(runs: Runs, python: str, *options: str, script: str = "", is_in_shell: bool = False) -> Terminal:
    """Run `python`'s code or a shell `script` on a terminal; ``is_in_shell`` starts the run in a shell, by `sh
    ./start`."""
    code = ["sh", "-c", script] if script else [sys.executable, "-c", python]
    words = command("run", "job", "--store", runs.store, *(options or ("--at-most", "1m")), "--", *code)
    if is_in_shell:
        runs.path("start").write_text(f"{shlex.join(words)}; echo ended\n")
        words = ["bash", "--norc", "--noprofile", "-i"]
    return Terminal(words, cwd=runs.directory, PS1="$ ")


def start_in_shell(runs: Runs, python: str, *options: str, script: str = "", line: str = "sh ./start\n") -> Terminal:
    terminal = on_terminal(runs, python, *options, script=script, is_in_shell=True)
    terminal.read_until("$ ")
    terminal.type(line)
    return terminal


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
raise SystemExit(21)
"""
READS_FIRST = COUNTS.replace('os.write(1, b"ready', 'print("read", input(), flush=True); os.write(1, b"ready')


@pytest.mark.parametrize("is_typed", [True, False])
@pytest.mark.parametrize("python", [COUNTS, READS_FIRST], ids=["in the background", "in the foreground"])
def test_sigint_reaches_the_command_once_each_time(runs: Runs, python: str, is_typed: bool) -> None:
    """Press Ctrl-C, or send SIGINT to the run alone. A command that reads gets the foreground."""
    with on_terminal(runs, python) as terminal:
        if python == READS_FIRST:
            terminal.type("one line\n")
            terminal.read_until("read one line")
        terminal.read_until("ready")
        for count in ("first 1", "second 2"):
            if is_typed:
                terminal.type("\x03")
            else:
                os.kill(terminal.pid, signal.SIGINT)
            terminal.read_until(count)
        assert terminal.end() == 21
    assert not runs.is_held()


def test_ctrl_c_that_ends_the_command(runs: Runs) -> None:
    python = "import signal, time; signal.signal(2, signal.SIG_DFL); print('ready', flush=True); time.sleep(60)"
    with on_terminal(runs, python) as terminal:
        terminal.read_until("ready")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert "Traceback" not in terminal.text
    assert not runs.is_held()


def test_a_terminal_that_is_closed_hangs_up_the_command(runs: Runs) -> None:
    python = (
        "import os, signal, time\n"
        f"def trap(number, frame): open({str(runs.path('hung-up'))!r}, 'w').write('hung up'); raise SystemExit(3)\n"
        "signal.signal(signal.SIGHUP, trap)\n"
        "os.write(1, b'ready\\n')\n"
        "while True: time.sleep(0.1)"
    )
    with on_terminal(runs, python) as terminal:
        terminal.read_until("ready")
        terminal.hang_up()
        assert terminal.end() == 3
    assert runs.wait_for("hung-up") == "hung up"
    assert not runs.is_held()


def test_a_command_on_a_terminal_can_read_from_it_and_is_ended_when_the_lease_is_lost(runs: Runs) -> None:
    python = "import time; print('hello', input()); time.sleep(60)"
    with on_terminal(runs, python, "--at-most", "3s") as terminal:
        terminal.type("world\n")
        terminal.read_until("hello world")
        assert terminal.end() == 75
        assert "was lost: the command takes longer than --at-most 3.0s" in terminal.text


# Ends after two typed lines.
ECHOES = "print('ready', flush=True); print('read', input(), flush=True); print('read', input(), flush=True)"


@pytest.mark.slow("starts two interpreters")
def test_a_run_inside_a_run_can_read_from_the_terminal(runs: Runs) -> None:
    words = command("run", "inner", "--store", runs.store, "--at-most", "1m", "--", sys.executable, "-c", ECHOES)
    with on_terminal(runs, "", script=f"exec {shlex.join(words)}") as terminal:
        terminal.read_until("ready")
        terminal.type("one\n")
        terminal.read_until("read one")
        terminal.type("two\n")
        assert terminal.end() == 0
        assert "read two" in terminal.text
    assert not runs.is_held()
    assert not runs.is_held("inner")


@pytest.mark.slow("starts two interpreters")
def test_what_follows_a_command_that_read_can_read_from_the_terminal(runs: Runs) -> None:
    """A script's shell works without job control, so it does not take the terminal back."""
    run = command("run", "job", "--store", runs.store, "--at-most", "1m", "--", sys.executable, "-c", ECHOES)
    with Terminal(["sh", "-c", f"{shlex.join(run)}; read line; echo after $line"]) as terminal:
        terminal.read_until("ready")
        terminal.type("one\ntwo\n")
        terminal.read_until("read two")
        terminal.type("three\n")
        terminal.read_until("after three")
        assert terminal.end() == 0


def test_ctrl_z_where_no_shell_could_continue_it(runs: Runs) -> None:
    """In a container with a terminal, neither the kernel nor the run stops anything."""
    with on_terminal(runs, "import time; print('ready', flush=True); time.sleep(1); print('done')") as terminal:
        terminal.read_until("ready")
        terminal.type("\x1a")
        assert terminal.end() == 0
        assert "done" in terminal.text


# Pipelines

PIPELINE = "echo $PPID > parent; sh -c 'echo $$ > pid; echo ready >&2; exec sleep 60' | cat"


def assert_first_half_ends(runs: Runs) -> None:
    pid = int(runs.wait_for("pid"))
    wait_until(lambda: not is_running(pid), timeout=5, what="the first half of the pipeline gone")


@needs_bash
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow("as SIGTERM"))])
def test_a_pipeline_on_a_terminal_is_ended_wholly_by_a_signal(runs: Runs, number: int) -> None:
    with start_in_shell(runs, "", script=PIPELINE) as terminal:
        terminal.read_until("ready")
        os.kill(int(runs.wait_for("parent")), number)
        terminal.read_until("ended")
        assert not runs.is_held()
        assert_first_half_ends(runs)


@pytest.mark.slow("job control in a shell")
@needs_bash
def test_a_pipeline_on_a_terminal_is_ended_wholly_when_the_lease_is_lost(runs: Runs) -> None:
    """Its first half ignores SIGTERM, and so outlives the shell by the grace period."""
    options = ("--at-most", "2s", "--grace", "300ms")
    with start_in_shell(runs, "", *options, script=f"trap '' TERM; {PIPELINE}") as terminal:
        terminal.read_until("ready")
        terminal.read_until("ended")
        assert_first_half_ends(runs)


# Job control

PARENT = "import os; open('parent', 'w').write(str(os.getppid()))"


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")


def stop(runs: Runs, terminal: Terminal) -> None:
    """Press Ctrl-Z. The shell between them reports the stop; the run stops a moment later."""
    terminal.type("\x1a")
    terminal.read_until(lambda text: "$ " in text.rpartition("Stopped")[2])
    wait_until(lambda: is_stopped(int(runs.wait_for("parent"))), what="the run stopped, too")


def assert_shell_replies(terminal: Terminal) -> None:
    before = terminal.text.count("still 42")
    terminal.type("echo still $((40 + 2))\n")
    terminal.read_until(lambda text: text.count("still 42") > before)


def leave(terminal: Terminal) -> None:
    terminal.type("exit\n")
    terminal.end()


@needs_bash
@pytest.mark.parametrize(
    "is_read_before", [pytest.param(False, marks=pytest.mark.slow("job control in a shell")), True]
)
def test_ctrl_z_and_fg_in_a_shell(runs: Runs, is_read_before: bool) -> None:
    """Command and run stop and go on, whether or not the command has the terminal when Ctrl-Z comes."""
    python = ECHOES if is_read_before else f"import time; print('up', flush=True); time.sleep(1); {ECHOES}"
    with start_in_shell(runs, f"{PARENT}; {python}") as terminal:
        terminal.read_until("ready" if is_read_before else "up")
        if is_read_before:
            terminal.type("one\n")
            terminal.read_until("read one")
        stop(runs, terminal)
        assert_shell_replies(terminal)
        terminal.type("fg\n")
        if not is_read_before:
            terminal.read_until("ready")
            terminal.type("one\n")
            terminal.read_until("read one")
        terminal.type("two\n")
        terminal.read_until("read two")
        wait_until(lambda: not runs.is_held(), what="the lock released")
        assert_shell_replies(terminal)
        leave(terminal)


@pytest.mark.slow("job control in a shell")
@needs_bash
def test_a_job_in_the_background_that_reads_is_stopped_and_goes_on_in_the_foreground(runs: Runs) -> None:
    with start_in_shell(runs, ECHOES, line="sh ./start &\n") as terminal:
        terminal.read_until("ready")
        wait_until(runs.is_held)

        def is_reported() -> bool:
            terminal.type("jobs\n")
            while terminal.read(0.3):
                pass
            return "Stopped" in terminal.text

        wait_until(is_reported, timeout=20, what="the job stopped")
        terminal.type("fg\n")
        terminal.type("one\ntwo\n")
        terminal.read_until("read two")
        wait_until(lambda: not runs.is_held(), what="the lock released")
        leave(terminal)


@pytest.mark.slow("job control in a shell")
@needs_bash
def test_a_lease_that_ended_while_both_were_stopped_ends_the_command(runs: Runs) -> None:
    python = f"{PARENT}; import time; print('ready', flush=True); time.sleep(60)"
    with start_in_shell(runs, python, "--at-most", "2s") as terminal:
        terminal.read_until("ready")
        stop(runs, terminal)
        wait_until(lambda: not runs.is_held(), what="the end of the lease")
        terminal.type("fg\n")
        terminal.read_until("was lost")
        assert_shell_replies(terminal)
        leave(terminal)


def blocks_signals(pid: int) -> bool:
    """Return whether the process is a run that receives its signals in a thread."""
    with suppress(OSError):
        status = dict(re.findall(r"(\w+):\t(.*)", Path(f"/proc/{pid}/status").read_text()))
        is_blocked = int(status["SigBlk"], 16) & 1 << (signal.SIGTSTP - 1)
        return int(status["Threads"]) > 1 and bool(is_blocked)  # a shell that is starting a process blocks signals too
    return False


@pytest.mark.slow("job control in a shell")
@needs_bash
def test_ctrl_z_while_the_lock_is_waited_for(runs: Runs) -> None:
    lease = take(runs.provider, "job")
    with start_in_shell(runs, "print('ran')", "--at-most", "1m", "--wait", "1h") as terminal:

        def waiting() -> list[int]:
            return list(filter(blocks_signals, descendants(terminal.pid)))

        wait_until(waiting, timeout=20, what="a run that waits")
        runs.path("parent").write_text(str(waiting()[0]))
        stop(runs, terminal)
        runs.provider.release(lease)
        terminal.type("fg\n")
        terminal.read_until("ran")
        terminal.read_until("ended")
        leave(terminal)
