"""Heartbeats stop with the process, in forked children, and while the interpreter is blocked."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from shedlock_py import (
    LeaseLost,
    LockRequest,
    NotLocked,
    assert_locked,
    configure,
    current_lease,
    extend_lock,
    hold,
    hold_async,
)
from shedlock_py.testing import RecordingListener
from tests.support.doubles import AsyncFaultyProvider, FaultyProvider
from tests.support.forked import Program
from tests.support.locks import opened
from tests.support.polling import wait_until

LEASE = 0.9


def run_script(script: str, url: str) -> Program:
    return Program(["-c", script, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/locks.db"
    with opened(f"{url}?timeout=60s") as provider:  # the disk may be busy
        provider.create_schema()
    return url


FORK = """
import os, sys, time
from shedlock_py import hold, provider_from_url
provider = provider_from_url(sys.argv[1])
with hold("job", lock_at_most_for="1s", keep_alive=True, provider=provider) as lease:
    child = os.fork()
    if not child:
        time.sleep(0.2)
        sys.exit()  # leaves the block, as any child does that ends in Python
    os.waitpid(child, 0)
    print("the child has ended, held:", provider.record("job").is_held, flush=True)
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(30)
    os._exit(0)
"""


@pytest.mark.not_quick("starts a Python")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_neither_releases_nor_sends_heartbeats(url: str) -> None:
    process, child = run_script(FORK, url), 0
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "the child has ended, held: True\n"
        child = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        with opened(url) as provider:
            wait_until(lambda: provider.acquire(LockRequest("job", "1m")) is not None, timeout=10)
    finally:
        process.kill()
        if child:
            os.kill(child, signal.SIGKILL)
        process.communicate()


CTRL_C = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job of a shell in the background ignores it
from shedlock_py import hold, provider_from_url
with hold("job", lock_at_most_for="1h", keep_alive=True, provider=provider_from_url(sys.argv[1])):
    print("held", flush=True)
    while True:  # Python 3.15 may run the handler of a signal after a builtin function that is called next
        time.sleep(0.1)
"""


@pytest.mark.not_quick("starts a Python")
def test_ctrl_c_in_the_body_releases(url: str) -> None:
    process = run_script(CTRL_C, url)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in err
    with opened(url) as provider:
        record = provider.record("job")
    assert record is not None
    assert not record.is_held


HANGING = """
import os, sys, threading, time
from shedlock_py import InMemoryLockProvider, hold

class Hanging(InMemoryLockProvider):
    def extend(self, lease, lock_at_most_for):
        requested.set()
        time.sleep(3600)

requested = threading.Event()
block = hold("job", lock_at_most_for="3s", keep_alive=True, provider=Hanging())
block.__enter__()  # and it is never left
requested.wait()
print("bye", flush=True)
"""


@pytest.mark.not_quick("starts a Python")
def test_a_heartbeat_that_hangs_does_not_keep_the_interpreter_from_ending(url: str) -> None:
    began = time.monotonic()
    process = run_script(HANGING, url)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "bye\n", "")
    assert time.monotonic() - began < 20


@pytest.mark.not_quick("waits for real seconds")
def test_i6_a_call_that_holds_the_gil_stalls_the_heartbeat_and_not_the_truth() -> None:
    recorded = RecordingListener()
    store = FaultyProvider()
    with configure(listeners=[recorded]):
        with hold("job", lock_at_most_for=LEASE, keep_alive=True, provider=store) as lease:
            assert lease is not None
            before = store.calls["extend"]
            ctypes.PyDLL(None).usleep(int(LEASE * 1.2 * 1_000_000))  # a C extension that keeps the GIL
            assert not lease.is_trusted()
            assert current_lease() is None
            assert store.calls["extend"] <= before + 1
        wait_until(lambda: [event.reason for event in recorded.of(LeaseLost)] == ["overrun"])


def test_child_threads_are_inside_in_a_copied_context_only() -> None:
    store = FaultyProvider()
    seen: dict[str, object] = {}

    def record_lease(what: str) -> None:
        lease = current_lease()
        seen[what] = lease
        if lease is not None:
            extend_lock("10m")

    with hold("job", lock_at_most_for=LEASE, keep_alive=True, provider=store) as lease:
        context = contextvars.copy_context()
        for thread in (
            threading.Thread(target=record_lease, args=("bare",)),
            threading.Thread(target=context.run, args=(record_lease, "copied")),
        ):
            thread.start()
            thread.join()
    assert seen == {"bare": None, "copied": lease}
    late = threading.Thread(target=context.run, args=(record_lease, "late"))
    late.start()
    late.join()
    assert seen["late"] is None


@pytest.mark.not_quick("waits for real seconds")
async def test_child_tasks_are_inside_as_long_as_the_job() -> None:
    store = AsyncFaultyProvider()
    may_end = asyncio.Event()

    async def child() -> None:
        assert_locked("job")
        await asyncio.to_thread(assert_locked, "job")
        await may_end.wait()
        with pytest.raises(NotLocked):
            assert_locked("job")

    async with hold_async("job", lock_at_most_for=LEASE, keep_alive=True, provider=store):
        task = asyncio.create_task(child())
        await asyncio.sleep(LEASE * 1.2)
    may_end.set()
    await task
