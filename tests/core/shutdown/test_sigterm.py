"""SIGTERM while a lease of an hour is held: a successor starts at once."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    LockProvider,
    LockRequest,
    hold,
    provider_from_url,
    release_on_sigterm,
)
from shedlock_py.testing.forks import in_child


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/locks.db"
    provider_from_url(url).create_schema()
    return url


@contextmanager
def application(url: str, kind: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.core.shutdown.app", url, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def terminated(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """How it ended, and what it said after SIGTERM."""
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    return process.returncode, out.splitlines(), err


def is_free(provider: LockProvider) -> bool:
    record = provider.record("job")
    return record is not None and not record.is_held


@pytest.mark.parametrize("kind", ["main", "asyncio"])
def test_a_task_of_the_main_thread_is_interrupted_and_released(url: str, kind: str) -> None:
    with application(url, kind) as process:
        status, said, _ = terminated(process)
    assert (status, said) == (143, [])
    assert is_free(provider_from_url(url))


def test_a_task_in_a_thread_may_end(url: str) -> None:
    with application(url, "thread") as process:
        status, said, err = terminated(process)
    assert (status, said, err) == (143, ["task ended", "a new task is skipped"], "")
    assert is_free(provider_from_url(url))
    assert provider_from_url(url).record("late") is None


def test_the_recipe_for_apscheduler(url: str) -> None:
    with application(url, "scheduler") as process:
        status, said, _ = terminated(process)
    assert status == 143
    assert said.count("held") <= 1  # at most a run that had begun; none begins after the signal
    assert said[-1] == "a new task is skipped"
    assert is_free(provider_from_url(url))


def test_what_does_not_end_in_time_keeps_its_lease(url: str) -> None:
    with application(url, "stubborn") as process:
        status, said, err = terminated(process)
    assert (status, said) == (143, ["a new task is skipped"])
    assert "their leases are left to expire: job" in err
    assert not is_free(provider_from_url(url))


def test_the_former_handler_is_called(url: str) -> None:
    with application(url, "chained") as process:
        status, said, _ = terminated(process)
    assert (status, said) == (7, ["the former handler"])
    assert is_free(provider_from_url(url))


# While a thread waits for tasks in other threads


@pytest.mark.parametrize("kind", ["locked", "log"])
def test_a_task_that_needs_what_the_main_thread_holds_can_end(url: str, kind: str) -> None:
    """The handler runs in the main thread: if it waited there, neither would go on."""
    began = time.monotonic()
    with application(url, kind) as process:
        status, said, err = terminated(process)
    assert (status, said, err) == (143, ["task ended", "a new task is skipped"], "")
    assert is_free(provider_from_url(url))
    assert time.monotonic() - began < 15


def test_a_main_thread_that_waits_for_a_lock_is_interrupted(url: str) -> None:
    with application(url, "blocked") as process:
        status, said, _ = terminated(process)
    assert (status, said) == (143, ["task ended"])
    assert is_free(provider_from_url(url))


def test_the_event_loop_of_the_main_thread_goes_on(url: str) -> None:
    with application(url, "both") as process:
        status, said, err = terminated(process)
    assert (status, said) == (143, ["task ended", "kept alive: True"]), err
    assert is_free(provider_from_url(url))


def test_an_event_loop_with_a_handler_is_notified_once_and_the_interpreter_waits(url: str) -> None:
    with application(url, "loop") as process:
        status, said, err = terminated(process)
    assert (status, said, err) == (0, ["the loop's handler", "task ended"], "")
    assert is_free(provider_from_url(url))


def test_a_main_thread_that_ends_by_itself_lets_tasks_of_daemon_threads_end(url: str) -> None:
    with application(url, "ends") as process:
        status, said, err = terminated(process)
    assert (status, said, err) == (0, ["main thread ends", "task ended"], "")
    assert is_free(provider_from_url(url))


def test_a_second_signal_does_not_wait(url: str) -> None:
    began = time.monotonic()
    with application(url, "patient") as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "shutting down\n"  # two at the same time are one
        status, said, err = terminated(process)
    assert (status, err) == (143, "")
    assert "task ended" not in said
    assert time.monotonic() - began < 15
    assert not is_free(provider_from_url(url))


def test_the_former_handler_is_called_once_and_after_the_wait(url: str) -> None:
    with application(url, "chained-thread") as process:
        status, said, _ = terminated(process)
    assert (status, said) == (7, ["task ended", "the former handler", "a new task is skipped"])


def test_a_handler_around_ours(url: str) -> None:
    with application(url, "wrapped") as process:
        status, said, err = terminated(process)
    assert (status, said, err) == (143, ["task ended", "a new task is skipped"], "")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_without_a_thread_to_wait_the_main_thread_waits(url: str) -> None:
    with application(url, "no-threads") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "no more threads\n"
        status, said, err = terminated(process)
    assert (status, said[0]) == (143, "task ended"), err


def test_without_it_the_lease_lasts(url: str) -> None:
    with application(url, "default") as process:
        status, _, _ = terminated(process)
    assert status == -signal.SIGTERM
    assert not is_free(provider_from_url(url))


def test_a_successor_starts_at_once_20_times(url: str) -> None:
    provider = provider_from_url(url)
    waits: list[float] = []
    for _ in range(20):
        with application(url, "main") as process:
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            while (lease := provider.acquire(LockRequest("job", "1m"))) is None:
                assert time.monotonic() < began + 20
                time.sleep(0.001)
            waits.append(time.monotonic() - began)
            provider.release(lease)
    print(f"\nmedian {statistics.median(waits) * 1000:.0f} ms, max {max(waits) * 1000:.0f} ms, of a lease of an hour")
    assert len(waits) == 20


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
        began = time.monotonic()
        with pytest.raises(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)
        assert time.monotonic() < began + 10
        assert not caplog.records

    def child_with_a_thread() -> None:
        is_held.clear()
        threading.Thread(target=job, args=["child"], daemon=True).start()
        assert is_held.wait(10)
        release_on_sigterm("100ms")
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit):
            time.sleep(30)  # a thread waits, and interrupts this
        assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["child"]

    thread = threading.Thread(target=job, args=["parent"])
    thread.start()
    assert is_held.wait(10)
    try:
        in_child(child)
        in_child(child_with_a_thread)
    finally:
        may_end.set()
        thread.join()


def test_only_in_the_main_thread() -> None:
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
