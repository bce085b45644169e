"""A process that cannot start threads for a while: the kernel refuses them, as at a container's pids limit.

Each test runs in its own process. Root is exempt from ``RLIMIT_NPROC``, so the process becomes another user first. A
lease that must not end lasts 2 seconds, so that a heartbeat may be a second late on a busy machine.
"""

from __future__ import annotations

import sys
import textwrap

import pytest

from tests.support import forked

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's"),
    pytest.mark.not_quick("starts a Python, as another user"),
]

PRELUDE = """
import asyncio, os, resource, threading
from shedlock_py import *
from shedlock_py.runtime.threads import timer
from shedlock_py.testing import RecordingListener
from tests.support.doubles import FaultyProvider
from tests.support.polling import until, wait_until

recorded, store, other = RecordingListener(), FaultyProvider(), FaultyProvider()
configure(listeners=[recorded])
with hold("warm-up", lock_at_most_for="1s", keep_alive=True, provider=FaultyProvider()):  # imports what is late
    wait_until(lambda: recorded.of(LockExtended))
recorded.events.clear()
timer.__self__.pop()  # the next one has no thread yet
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(50000)
    os.setuid(50000 + os.getpid() % 10000)  # the limit counts all processes of a user
HARD = resource.getrlimit(resource.RLIMIT_NPROC)[1]

def limit(number):
    resource.setrlimit(resource.RLIMIT_NPROC, (number, HARD))

def refuse():
    limit(0)
    try:
        threading.Thread(target=print).start()
    except RuntimeError as error:
        assert "can't start new thread" in str(error)
    else:
        raise AssertionError("the kernel still starts threads")

def allow():
    limit(HARD)

def heartbeats(number):
    wait_until(more_heartbeats(number), what=f"{number} heartbeats")

def more_heartbeats(number):
    target = len(recorded.of(LockExtended)) + number
    return lambda: len(recorded.of(LockExtended)) >= target
"""


def run(script: str) -> None:
    done = forked.run(["-c", PRELUDE + textwrap.dedent(script)])
    assert (done.returncode, done.stdout) == (0, "as it should be\n"), done.stderr


def test_a_lease_that_was_kept_alive_before_goes_on() -> None:
    run("""
        with hold("job", lock_at_most_for="2s", keep_alive=True, provider=store) as lease:
            heartbeats(1)
            refuse()
            heartbeats(2)
            assert lease.is_trusted()
        assert not recorded.of(LeaseLost) and not recorded.of(ProviderFailed), recorded.events
        print("as it should be")
    """)


def test_a_heartbeat_that_no_thread_could_send_is_tried_again() -> None:
    run("""
        with hold("other", lock_at_most_for="1m", keep_alive=True, provider=other):  # its timer serves all
            refuse()
            with hold("job", lock_at_most_for="3s", keep_alive=True, provider=store) as lease:
                wait_until(lambda: lease.trusted_for().total_seconds() < 1.5, what="half a second after one is due")
                assert not store.calls["extend"]
                allow()
                heartbeats(2)
                assert lease.is_trusted()
        assert not recorded.of(LeaseLost)
        errors = {str(event.error) for event in recorded.of(ProviderFailed)}
        assert errors == {"can't start new thread"}, errors
        print("as it should be")
    """)


@pytest.mark.parametrize("until", ["the task ends", "threads can be started"])
def test_a_lease_that_is_lost_for_want_of_threads_is_reported(until: str) -> None:
    run(f"""
        lost = []
        with hold("other", lock_at_most_for="1m", keep_alive=True, provider=other):
            refuse()
            with hold("job", lock_at_most_for="1s", keep_alive=True, on_lost=lost.append, provider=store) as lease:
                wait_until(lease.is_lost, what="the moment at which keep-alive notices")  # not the task's own end
                if {until!r} == "threads can be started":
                    allow()
                    wait_until(lambda: lost, what="the report while the task runs")
        assert [event.reason for event in recorded.of(LeaseLost)] == ["unreachable"], recorded.events
        assert lost == recorded.of(LeaseLost)
        assert recorded.of(ProviderFailed), "no event has the reason"
        allow()
        with hold("job", lock_at_most_for="2s", keep_alive=True, provider=store):
            heartbeats(1)  # a later lease is kept alive
        print("as it should be")
    """)


def test_without_a_timer_no_task_begins_and_the_next_one_is_kept_alive() -> None:
    run("""
        refuse()
        try:
            with hold("job", lock_at_most_for="2s", keep_alive=True, provider=store):
                raise AssertionError("the task runs, and nothing keeps its lease alive")
        except RuntimeError as error:
            assert "'job'" in str(error) and "can't start new thread" in str(error), error
        assert not store.record("job").is_held
        allow()
        for _ in range(2):
            with hold("job", lock_at_most_for="2s", keep_alive=True, provider=store) as lease:
                heartbeats(1)
                assert lease.is_trusted()
        print("as it should be")
    """)


def test_async_code_on_a_sync_provider() -> None:
    run("""
        async def main():
            refuse()
            try:
                await attempt_async("job", lambda: asyncio.sleep(0), lock_at_most_for="1m", provider=store)
            except ProviderUnreachable as error:
                assert error.operation == "acquire" and error.lock_name == "job", error
                assert "can't start new thread" in str(error), error
            else:
                raise AssertionError("it ran")
            allow()
            async with hold_async("job", lock_at_most_for="2s", keep_alive=True, provider=store) as lease:
                await until(more_heartbeats(1))
                refuse()
                await until(more_heartbeats(2))
                assert lease.is_trusted()
            assert not store.record("job").is_held

        asyncio.run(main())
        print("as it should be")
    """)
