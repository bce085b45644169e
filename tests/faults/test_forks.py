"""A process forks while it holds locks, or while its threads are at work. I1, I2, I13.

The contract and the tests of each store cover the use of a provider in a forked child.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import (
    LeaseLost,
    LockRequest,
    assert_locked,
    attempt,
    configure,
    hold,
)
from shedlock_py.guard.heartbeat_plan import HeartbeatPlan
from shedlock_py.testing import RecordingListener
from shedlock_py.testing.forks import in_child
from shedlock_py.testing.proxy import TcpProxy
from tests.support.doubles import ForwardingProvider
from tests.support.polling import wait_until
from tests.support.stores import SINGLE, Store

pytestmark = pytest.mark.filterwarnings("ignore:MongoClient opened before fork:UserWarning")


IN_MAKE_TEST = ("sqlite", "postgres", "mysql", "redis", "mongodb")
ANOTHER_STORE = pytest.mark.slow("`make test` tries five stores, and the contract forks on each")


@pytest.mark.parametrize(
    "store",
    [pytest.param(f"{name} sync", marks=[] if name in IN_MAKE_TEST else ANOTHER_STORE) for name in SINGLE],
    indirect=True,
)
def test_i2_a_fork_in_the_middle_of_a_heartbeat_harms_no_lease(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's memory holds its parent's lease, with a heartbeat that never ends there, and must not harm it."""
    monkeypatch.setattr(HeartbeatPlan, "HEARTBEATS", 6000)  # of a lease of ten minutes, which does not expire meanwhile
    name, events = f"forks-{uuid4().hex[:12]}", RecordingListener()
    has_begun, may_send, heartbeats = threading.Event(), threading.Event(), []

    class StandingStill(ForwardingProvider):
        def call(self, operation: str, *arguments: Any) -> Any:
            if operation == "extend":
                heartbeats.append(arguments)
                has_begun.set()
                may_send.wait(10)
            return super().call(operation, *arguments)

    def child() -> None:
        may_send.set()
        for keep_alive in (False, True):
            result = attempt(
                f"{name}-child", lambda: 7, lock_at_most_for="1m", keep_alive=keep_alive, provider=provider
            )
            assert getattr(result, "value", None) == 7
        assert provider.acquire(LockRequest(name, "1m")) is None, "the parent has it"

    with store.provider() as inner, configure(listeners=[events]):
        provider = StandingStill()
        provider.inner = inner
        with hold(name, lock_at_most_for="10m", keep_alive=True, provider=provider) as lease:
            assert lease is not None
            assert has_begun.wait(10)
            in_child(child)
            may_send.set()
            before = len(heartbeats)
            wait_until(lambda: len(heartbeats) >= before + 2, what="more heartbeats in the parent")
            assert_locked(name)
        assert not events.of(LeaseLost)
        record = provider.record(name)
        assert record is not None
        assert not record.is_held


FORKED = """
import ctypes, json, os, signal, sys, threading
from contextlib import suppress
from shedlock_py import ProviderUnreachable
from tests.support.forks import prepare_for_c_forks
from tests.support.stores import open_provider

prepare_for_c_forks()
provider = open_provider(**json.loads(sys.argv[2]))
provider.record("warm")
provider.close()

def child():
    signal.alarm(60)
    sys.setswitchinterval(1e-6)
    everybody = threading.Barrier(20)
    def work(number):
        everybody.wait(30)
        with suppress(ProviderUnreachable):  # a busy machine may not connect all in time
            provider.record(f"many-{number}")
        done.append(number)
    done = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    provider.record("works")
    print("stall", flush=True)
    sys.stdin.readline()
    try:
        provider.record("silent")
    except ProviderUnreachable as error:
        return 0 if len(done) == 20 and "limit of 6 s" in str(error) else 1
    return 2

fork = {"Python": os.fork, "C": ctypes.PyDLL(None).fork}[sys.argv[1]]
for _ in range(3):
    pid = fork()
    if pid == 0:
        os._exit(child())  # public: a child does not run its parent's exit handlers
    if os.waitpid(pid, 0)[1]:
        sys.exit("a time limit of a forked process did not work")
    print("resume", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow("starts a process and waits for its time limits")
@pytest.mark.parametrize("kind", ["Python", "C"])
def test_i13_time_limits_in_a_forked_process_with_many_threads(kind: str, make_store: Callable[..., Store]) -> None:
    """Threads of a new child started PostgreSQL's watchdog at the same time, and it died. uWSGI forks in C."""
    store = make_store("postgres")
    store.options["timeout"] = "6s"  # twenty threads that switch each microsecond open twenty connections
    with (
        TcpProxy(store.addresses[0]) as proxy,
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", FORKED, kind, json.dumps(store.arguments([proxy.address]))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        words = []
        for line in process.stdout:
            words.append(line.strip())
            (proxy.stall if words[-1] == "stall" else proxy.resume)()
            process.stdin.write("done\n")
            process.stdin.flush()
        assert (process.wait(60), words) == (0, ["stall", "resume"] * 3)
