"""A lost lease ends the command, whatever the command, the store or a terminal does."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from contextlib import suppress

import pytest

from tests.cli.harness import in_a_process, provider_at
from tests.cli.runs import LATER_ON_ASYNCPG, Runs
from tests.cli.terminal import PROGRAM
from tests.support.availability import private_server
from tests.support.polling import wait_until
from tests.support.processes import is_running
from tests.support.redis import RedisEndpoint, RedisServer

pytestmark = in_a_process


# Reports the signal that it gets.
REPORTS = """
import os, signal, sys, time
def trap(number, frame): os.write(1, b"got SIGTERM\\n"); sys.exit(0)
signal.signal(signal.SIGTERM, trap)
os.write(1, b"ready\\n")
time.sleep(60)
"""
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"


@pytest.mark.slow("waits for the end of a lease of 6 seconds")
def test_i6_an_overrun_ends_the_command_before_its_lease_ends(runs: Runs) -> None:
    python = REPORTS.replace("def trap(number, frame):", "def trap(number, frame): print(time.time(), flush=True);")
    process = runs.start_ready("job", "--at-most", "6s", python=python)
    record = runs.record()
    code, out, err = runs.end(process)
    at, _, report = out.partition("\n")
    # The command got SIGTERM before the store, a file, could give the lock to another holder: 1 % of 6 s.
    assert float(at) < record.lock_until.timestamp()
    assert (code, report) == (75, "got SIGTERM\n")
    assert err == (
        "shedlock: lock 'job' was lost: the command takes longer than --at-most 6.0s; "
        "the command gets SIGTERM, and SIGKILL after 10s\n"
    )


@pytest.mark.parametrize("is_configured", [False, True], ids=["a URL", "a module that configures the application"])
def test_revoked_under_keep_alive(runs: Runs, is_configured: bool) -> None:
    if is_configured:
        runs.use_provider(
            "from shedlock_py import configure, provider_from_url\n"
            f"provider = provider_from_url({runs.store!r})\n"
            "configure(provider=provider, default_lock_at_most_for='1h')\n"
        )
    process = runs.start_ready("job", "--at-most", "3s", "--keep-alive", python=REPORTS)
    runs.provider.force_release("job")
    code, out, err = runs.end(process)
    assert (code, out) == (75, "got SIGTERM\n")
    assert err == (
        "shedlock: lock 'job' was freed or taken over by force, or the store forgot it; the command gets SIGTERM, "
        "and SIGKILL after 10s\n"
    )


@LATER_ON_ASYNCPG
def test_kept_alive_it_runs_longer_than_its_lease(runs: Runs) -> None:
    python = "import time; time.sleep(2.5); print('done')"
    assert runs.run("job", "--at-most", "1s", "--keep-alive", python=python) == (0, "done\n", "")


def test_i3_a_command_that_hangs_is_ended_after_the_limit(runs: Runs) -> None:
    process = runs.start_ready("job", "--at-most", "1s", "--keep-alive-for", "1.5s", python=REPORTS)
    code, out, err = runs.end(process)
    assert (code, out) == (75, "got SIGTERM\n")
    assert "lock 'job' was lost: the command takes longer than --keep-alive-for 1.5s; the command gets" in err


def test_revoked_without_keep_alive_is_told_at_the_end(runs: Runs) -> None:
    python = "print('ready', flush=True); input()"
    process = runs.start_ready("job", "--at-most", "1m", python=python, stdin=subprocess.PIPE)
    runs.provider.force_release("job")
    _, err = process.communicate("go\n", timeout=30)
    assert process.returncode == 0
    assert err == (
        "shedlock: lock 'job' was freed or taken over by force, or the store forgot it; the command has ended, but "
        "another may have run at the same time\n"
    )


def test_one_that_ignores_sigterm_is_killed(runs: Runs) -> None:
    process = runs.start_ready("job", "--at-most", "2s", "--grace", "500ms", python=STUBBORN)
    code, _, err = runs.end(process)
    assert (code, "SIGKILL after 0.5s" in err) == (75, True)


def test_one_that_is_stopped_is_ended(runs: Runs) -> None:
    python = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    process = runs.start("job", "--at-most", "2s", "--grace", "1h", python=python)
    assert process.stdout is not None
    os.kill(int(process.stdout.readline()), signal.SIGSTOP)
    assert runs.end(process)[0] == 75


def test_a_pipeline_is_ended_wholly(runs: Runs) -> None:
    """Its second half ignores SIGTERM, and so outlives the shell by the grace period."""
    script = "sh -c 'trap \"\" TERM; echo $$ > pid; echo ready >&2; sleep 60; sleep 60' | sleep 60"
    process = runs.start("job", "--at-most", "2s", "--grace", "500ms", words=["sh", "-c", script], cwd=runs.directory)
    pid = int(runs.wait_for("pid"))
    assert runs.end(process)[0] == 75
    wait_until(lambda: not is_running(pid), what="the second half of the pipeline gone")


def test_each_member_of_a_pipeline_has_the_grace_period(runs: Runs) -> None:
    """The shell dies of SIGTERM at once; the run waits for the member that tidies up."""
    script = "sh -c 'trap \"sleep 0.7; echo tidy > tidied; exit\" TERM; echo > up; while :; do sleep 0.1; done' | cat"
    process = runs.start("job", "--at-most", "2s", "--grace", "1h", words=["sh", "-c", script], cwd=runs.directory)
    assert runs.end(process)[0] == 75
    assert runs.path("tidied").read_text() == "tidy\n"


def test_i6_a_lease_that_ended_before_the_command_was_started(runs: Runs) -> None:
    """The process was stopped after the grant, so the command does not run."""
    program = (
        "import time\nfrom shedlock_py.cli import guarded\ncurrent_lease = guarded.current_lease\n"
        f"guarded.current_lease = lambda: (time.sleep(1.1), current_lease())[1]\n{PROGRAM}"
    )
    ended = runs.run("job", "--at-most", "1s", python="print('ran')", program=program)
    assert ended == (75, "", "shedlock: lock 'job' was lost before the command was started\n")


def test_i6_a_lease_that_ended_while_all_stood_still_continues_nothing(runs: Runs) -> None:
    """SIGCONT is in the queue before the guard's ``LeaseLost``. The clock decides, not the order of messages."""
    program = (
        "import signal, time\nfrom shedlock_py.cli.guarded import Child, Guarded\n"
        "supervise, pass_on = Guarded.supervise, Child.pass_on\n"
        "def late(guarded, child, lease):\n"
        "    guarded.messages.put(signal.SIGCONT)\n"
        "    while lease.is_trusted(): time.sleep(0.01)\n"
        "    return supervise(guarded, child, lease)\n"
        "def reported(child, number):\n"
        "    if number == signal.SIGCONT: print('continued', flush=True)\n"
        "    pass_on(child, number)\n"
        f"Guarded.supervise, Child.pass_on = late, reported\n{PROGRAM}"
    )
    code, out, err = runs.run("job", "--at-most", "1s", python="import time; time.sleep(60)", program=program)
    assert (code, out) == (75, "")
    assert "was lost" in err


def test_a_reader_that_does_not_read_keeps_nothing_alive(runs: Runs) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, b"x" * 4096):
            pass  # until the pipe is full
    os.set_blocking(writer, True)
    process = runs.start("job", "--at-most", "1s", "--grace", "500ms", python=STUBBORN, stderr=writer)
    try:
        assert process.wait(20) == 75
    finally:
        os.close(reader)
        os.close(writer)


def test_a_reader_that_is_behind_gets_the_line_all_the_same(runs: Runs) -> None:
    """Standard error is a pipe that the command has filled, as with ``2>&1 | logger``."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, b"x" * 4096):
            pass
    os.set_blocking(writer, True)
    python = REPORTS.replace("def trap(number, frame):", "def trap(number, frame): open('ended', 'w').write('yes');")
    program = f"from shedlock_py.cli import guarded\nguarded.REPORT_SECONDS = 20.0\n{PROGRAM}"
    process = runs.start("job", "--at-most", "1s", python=python, program=program, stderr=writer, cwd=runs.directory)
    os.close(writer)
    try:
        runs.wait_for("ended")
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)  # it waits for the reader
        with os.fdopen(reader) as stderr:
            text = stderr.read()
    finally:
        assert process.wait(20) == 75
    assert "was lost: the command takes longer than --at-most 1.0s" in text


@pytest.mark.slow("six commands")
def test_a_terminal_that_is_nearly_full_keeps_nothing_alive(runs: Runs) -> None:
    """The kernel calls the terminal writable, but blocks until a whole line fits. SIGKILL must come anyway."""
    masters, started = [], []
    for size in (14_950, 15_650, 16_700, 17_700, 18_800, 19_000):  # on Linux, some of these leave room for half a line
        master, terminal = pty.openpty()
        masters.append(master)
        os.set_blocking(terminal, False)
        with suppress(BlockingIOError):
            for _ in range(size // 50):
                os.write(terminal, b"x" * 50)
        os.set_blocking(terminal, True)
        name = "\U000e0001" * 61 + str(size)[:3]  # ten bytes for each character, as printed
        options = ("--at-most", "1s", "--grace", "500ms")
        started.append(runs.start(name, *options, python=STUBBORN, stderr=terminal))
        os.close(terminal)
    try:
        assert [process.wait(20) for process in started] == [75] * len(started)
    finally:
        for master in masters:
            os.close(master)


# A store that does not reply


@pytest.fixture
def redis_runs(runs: Runs, redis_server: RedisEndpoint) -> Runs:
    runs.store = redis_server.url()
    runs.provider = provider_at(runs.store)
    return runs


def test_a_run_on_redis_has_a_token_and_a_period(redis_runs: Runs, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    python = "import os; print(os.environ['SHEDLOCK_FENCING_TOKEN'].isdigit())"
    assert redis_runs.run(name, "--at-most", "1m", "--once-per", "3000d", python=python) == (0, "True\n", "")
    assert redis_runs.run(name, "--at-most", "1m", "--once-per", "3000d", python=python) == (0, "", "")


def test_a_server_that_stands_still_ends_a_command_that_is_kept_alive(runs: Runs) -> None:
    with private_server("redis", RedisServer) as server:
        runs.store = f"{server.url()}?timeout=500ms"
        process = runs.start_ready("job", "--at-most", "3s", "--keep-alive", python=REPORTS)
        server.pause()
        assert process.stdout is not None
        assert process.stdout.readline() == "got SIGTERM\n"
        code, _, err = runs.end(process)
        server.resume()
    assert code == 75
    could_not, was_lost, *_ = err.splitlines()
    assert could_not.startswith("shedlock: lock 'job' could not be extended, trying again: ")
    assert "was lost: the store has not replied for so long that others may get the lock" in was_lost


@pytest.mark.slow("waits for a renewal of a long lease")
def test_a_server_that_comes_back_in_time_ends_nothing(runs: Runs) -> None:
    with private_server("redis", RedisServer) as server:
        runs.store = server.url()
        python = "import sys; print('ready', flush=True); print('read', input())"
        process = runs.start_ready("job", "--at-most", "9s", "--keep-alive", python=python, stdin=subprocess.PIPE)
        server.pause()
        assert process.stderr is not None
        first = process.stderr.readline()
        server.resume()
        out, err = process.communicate("line\n", timeout=30)
    assert "could not be extended, trying again" in first
    assert (process.returncode, out, err) == (0, "read line\n", "")
