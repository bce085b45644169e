"""SIGTERM while a lease of an hour is held: a successor starts at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    LockProvider,
    hold,
    release_on_sigterm,
)
from shedlock_py.testing.forks import in_child
from tests.support import forked, tiers
from tests.support.forked import Program
from tests.support.locks import acquired, opened
from tests.support.logs import warnings_of
from tests.support.polling import wait_until

pytestmark = pytest.mark.not_quick("starts the application that gets the signal")
TIMES = 20 if tiers.runs("all") else 3


@pytest.fixture
def url(tmp_path: Path) -> str:
    # A busy disk may delay a write for more than the default limit of 5 seconds.
    url = f"sqlite:///{tmp_path}/locks.db?timeout=60s"
    with opened(url) as provider:
        provider.create_schema()
    return url


@pytest.fixture
def provider(url: str) -> Iterator[LockProvider]:
    with opened(url) as provider:
        yield provider


@contextmanager
def application(url: str, kind: str) -> Iterator[Program]:
    command = ["-m", "tests.core.shutdown.app", url, kind]
    with Program(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if (line := process.stdout.readline()) != "held\n":
                pytest.fail(f"not held: {line, *process.communicate(timeout=30)}")
            yield process
        finally:
            process.kill()


def terminated(process: Program) -> tuple[int, list[str], str]:
    """Send SIGTERM. Return the exit code and the output."""
    process.send_signal(signal.SIGTERM)
    try:
        out, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler writes what each thread does
        pytest.fail(f"it did not end: {process.communicate(timeout=30)}")
    return process.returncode, out.splitlines(), err


def is_free(provider: LockProvider) -> bool:
    record = provider.record("job")
    return record is not None and not record.is_held


ENDED, SKIPPED = "task ended", "a new task is skipped"


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        # The signal interrupts a task of the main thread.
        ("main", 143, []),
        ("asyncio", 143, []),
        ("chained", 7, ["the former handler"]),
        ("chained-again", 7, ["the former handler"]),
        ("chained-in-a-circle", 143, []),
        ("chained-twice", 7, ["the same signal again", "shut down in peace"]),
        # A task of another thread may finish; meanwhile the main thread goes on.
        ("thread", 143, [ENDED, SKIPPED]),
        ("chained-thread", 7, [ENDED, "the former handler", SKIPPED]),
        ("chained-again-thread", 7, [ENDED, "the former handler", SKIPPED]),
        ("wrapped", 143, [ENDED, SKIPPED]),
        # The task needs a lock that the main thread holds: a handler that waited would wait for ever.
        ("locked", 143, [ENDED, SKIPPED]),
        ("log", 143, [ENDED, SKIPPED]),
        ("blocked", 143, [ENDED]),
        ("nested", 143, ["what it needs runs", SKIPPED]),
        ("reset", 0, [ENDED]),
        ("again", 143, [ENDED, "cleaned up"]),
        ("both", 143, [ENDED, "kept alive: True"]),
        ("loop", 0, ["the loop's handler", ENDED]),
        ("ends", 0, ["main thread ends", ENDED]),
    ],
)
def test_leases_are_released_and_the_process_ends(
    url: str, provider: LockProvider, kind: str, status: int, expected: list[str]
) -> None:
    with application(url, kind) as process:
        ended = terminated(process)
    assert ended[:2] == (status, expected), ended
    assert "left to expire" not in ended[2]
    assert is_free(provider)
    assert provider.record("late") is None


def test_no_run_of_apscheduler_begins_after_sigterm(url: str, provider: LockProvider) -> None:
    with application(url, "scheduler") as process:
        status, output, _ = terminated(process)
    assert status == 143
    assert output.count("held") <= 1  # a run may have begun before the signal, but not after it
    assert output[-1] == "a new task is skipped"
    assert is_free(provider)


@pytest.mark.parametrize("kind", ["stubborn", "hung-log"])
def test_what_does_not_end_in_time_keeps_its_lease(url: str, provider: LockProvider, kind: str) -> None:
    with application(url, kind) as process:
        status, output, err = terminated(process)
    assert (status, output) == (143, ["a new task is skipped"])
    assert kind == "hung-log" or "their leases are left to expire: job" in err
    assert not is_free(provider)


@pytest.mark.slow("starts a program and waits for its end")
def test_i14_a_job_that_hangs_does_not_outlast_the_wait(url: str, provider: LockProvider) -> None:
    """Python joins a pool's threads at its exit, and so does the scheduler's shutdown."""
    with application(url, "hung-job") as process:
        status, output, err = terminated(process)
    assert (status, output) == (143, ["a new task is skipped", "shut down", "atexit"])
    first, last = err.splitlines()
    assert re.fullmatch(r"SIGTERM: still running, their leases are left to expire: job \(of \S+\)", first)
    assert re.fullmatch(r"lock 'job': the run of \S+ is lost: it was cancelled, or its process shut down", last)
    assert not is_free(provider)


@pytest.mark.slow("starts programs and waits for their endings")
def test_a_second_signal_does_not_wait(url: str, provider: LockProvider) -> None:
    with application(url, "slow") as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "shutting down\n"  # two signals at the same time count as one
        status, output, err = terminated(process)
    assert status == 143
    assert err in ("", "SIGTERM: still running, their leases are left to expire: job\n")  # if it has time to log it
    assert ENDED not in output
    assert not is_free(provider)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_without_a_thread_to_wait_the_main_thread_waits(url: str) -> None:
    with application(url, "no-threads") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "no more threads\n"
        status, output, err = terminated(process)
    assert (status, output[0]) == (143, ENDED), err


def test_without_release_on_sigterm_the_lease_lasts(url: str, provider: LockProvider) -> None:
    with application(url, "default") as process:
        status, _, _ = terminated(process)
    assert status == -signal.SIGTERM
    assert not is_free(provider)


def test_a_successor_starts_before_the_lease_of_an_hour_ends(url: str, provider: LockProvider) -> None:
    for _ in range(TIMES):
        with application(url, "main") as process:
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: is_free(provider), timeout=60, what="the release")
            assert provider.release(acquired(provider, "job"))


@pytest.mark.slow("forks a process with many threads")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_child_does_not_wait_for_its_parents_threads(caplog: pytest.LogCaptureFixture) -> None:
    provider = InMemoryLockProvider()
    is_held, may_end = threading.Event(), threading.Event()

    def job(name: str) -> None:
        with hold(name, lock_at_most_for="1m", provider=provider):
            is_held.set()
            may_end.wait(30)

    def child() -> None:
        release_on_sigterm("30s")
        with pytest.raises(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)
        assert not may_end.is_set(), "it has not waited for a task that ends later"
        assert warnings_of(caplog) == []

    def child_with_a_thread() -> None:
        is_held.clear()
        threading.Thread(target=job, args=["child"], daemon=True).start()
        assert is_held.wait(10)
        release_on_sigterm("100ms")
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit):
            wait_until(may_end.is_set, timeout=30)  # a thread waits for the child's task, then interrupts this wait
        assert [message.rpartition(": ")[2] for message in warnings_of(caplog)] == ["child"]

    thread = threading.Thread(target=job, args=["parent"])
    thread.start()
    assert is_held.wait(10)
    try:
        in_child(child)
        in_child(child_with_a_thread)
    finally:
        may_end.set()
        thread.join()


def test_release_on_sigterm_is_refused_outside_the_main_thread_and_with_a_wrong_duration() -> None:
    errors: list[BaseException] = []

    def install() -> None:
        try:
            release_on_sigterm()
        except ConfigurationError as error:
            errors.append(error)

    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])
    with pytest.raises(ConfigurationError):
        release_on_sigterm("soon")


REPEATED = """
import signal
from shedlock_py import release_on_sigterm

signal.signal(signal.SIGTERM, lambda *_: print("handled"))
release_on_sigterm()
for _ in range(3):
    signal.raise_signal(signal.SIGTERM)
print("goes on")
"""


def test_a_former_handler_that_returns_gets_each_signal() -> None:
    done = forked.run(["-c", REPEATED])
    assert (done.returncode, done.stdout) == (0, "handled\nhandled\nhandled\ngoes on\n"), done.stderr


AT_THE_END = """
import os, signal, threading, time

from shedlock_py import InMemoryLockProvider, configure, hold, release_on_sigterm


has_begun = threading.Event()


def task():
    with hold("job", lock_at_most_for="1h"):
        os.kill(os.getpid(), signal.SIGTERM)
        has_begun.set()
        threading.main_thread().join()
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
        print("task ended", flush=True)


configure(provider=InMemoryLockProvider())
release_on_sigterm()
threading.Thread(target=task, daemon=True).start()
has_begun.wait(20)
"""


def test_a_second_signal_when_the_main_thread_has_ended_by_itself() -> None:
    """The interpreter waits for the task. The signal ends the wait without a traceback."""
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


GREEN = """
from gevent import monkey; monkey.patch_all()
import os, signal, threading, time

from shedlock_py import InMemoryLockProvider, configure, hold, release_on_sigterm

provider = InMemoryLockProvider()


def task():
    with hold("job", lock_at_most_for="1h"):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
    print("task ended")


configure(provider=provider)
release_on_sigterm()
threading.Thread(target=task).start()
try:
    time.sleep(20)
finally:
    print("finally", provider.record("job").is_held)
"""


def test_gevent_whose_threads_have_other_idents() -> None:
    """``pthread_kill`` with such an ident hangs for ever, or crashes."""
    pytest.importorskip("gevent")
    done = subprocess.run([sys.executable, "-c", GREEN], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (143, "task ended\nfinally False\n"), done.stderr
