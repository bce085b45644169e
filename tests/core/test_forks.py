"""A forked child requests locks under its own name, and does not touch the leases of its parent."""

import os
import signal
import sys
import threading

import pytest

from shedlock_py import InMemoryLockProvider, LockRequest, attempt, configure, current_lease, hold, scheduler_lock
from shedlock_py.settings.defaults import lock_request
from shedlock_py.testing.forks import in_child
from tests.support.forks import check_fork_by_c

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")


def test_a_child_requests_the_same_lock_under_its_own_name() -> None:
    configure(provider=InMemoryLockProvider())
    assert lock_request("job").holder.endswith(f":{os.getpid()}")

    @scheduler_lock("job")
    def holder() -> str:
        lease = current_lease()
        assert lease is not None
        return lease.holder

    assert str(holder()).endswith(f":{os.getpid()}")

    def child() -> None:
        assert lock_request("job").holder.endswith(f":{os.getpid()}")
        assert str(holder()).endswith(f":{os.getpid()}")

    in_child(child)


def test_a_host_whose_name_no_holder_may_have_runs_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "paused by nobody")
    for _ in range(2):  # only the second request is checked
        assert lock_request("odd-host").holder == f"paused by nobody:{os.getpid()}"


def test_a_child_that_is_forked_in_a_task_reports_nothing_of_its_end() -> None:
    events: list[str] = []
    provider = InMemoryLockProvider()
    configure(provider=provider, listeners=[lambda event: events.append(type(event).__name__)])
    block = hold("job")
    with block:

        def child() -> None:
            del events[:]
            block.__exit__(None, None, None)
            assert events == []
            record = provider.record("job")
            assert record is not None
            assert record.is_held
            attempt("other", lambda: 7)
            assert events == ["LockAcquired", "TaskFinished", "LockReleased"]

        in_child(child)
    assert events == ["LockAcquired", "TaskFinished", "LockReleased"]


def test_a_block_that_was_made_before_the_fork_is_the_childs_where_it_is_entered() -> None:
    configure(provider=InMemoryLockProvider())
    block = hold("job")

    def child() -> None:
        with block as lease:
            assert lease is not None
            assert lease.holder.endswith(f":{os.getpid()}")

    in_child(child)


def test_a_child_that_is_forked_while_a_thread_is_in_the_memory_store() -> None:
    """The child does not have the thread that would release the store's lock."""
    provider = InMemoryLockProvider()
    is_in, is_over = threading.Event(), threading.Event()

    def stay(*_: object) -> None:
        is_in.set()
        is_over.wait(60)

    thread = threading.Thread(target=provider.programs.store.execute, args=(stay, None))
    thread.start()
    is_in.wait(60)

    def child() -> None:
        signal.alarm(20)  # otherwise it would wait for ever
        assert provider.acquire(LockRequest("job", "1m"))

    in_child(child)
    is_over.set()
    thread.join()


@pytest.mark.not_quick("starts a Python, in which C code forks")
def test_children_that_c_code_forked_free_nothing_and_do_not_retry_at_the_same_moments() -> None:
    check_fork_by_c("block jitter", "memory://", "job")
