"""Worker pools and the timer: their work, the faults that they survive, and the end of their threads."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial

import pytest

from shedlock_py import InMemoryLockProvider
from shedlock_py.runtime import threads
from shedlock_py.runtime.process import monotonic
from shedlock_py.runtime.threads import Timer, WorkerPool, request_in_worker, worker_pool
from shedlock_py.testing.forks import in_child
from tests.support.polling import wait_until
from tests.support.signals import interrupted, moments_are_known

SOON = 10.0
KINDS = [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException, ValueError]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The name of the pool's threads; threads of another test may still be idle."""
    return str(request.node.name)


@pytest.fixture
def pool(name: str) -> WorkerPool:
    return WorkerPool(2, name)


def workers(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


class NoThreads:
    """Replaces ``Thread.start`` while the kernel refuses threads; the real limit is in tests/core/keepalive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
        self._monkeypatch = monkeypatch
        self._error = error

    def __enter__(self) -> None:
        def start(thread: threading.Thread) -> None:
            raise self._error

        self._monkeypatch.setattr(threading.Thread, "start", start)

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> NoThreads:
    return NoThreads(monkeypatch, RuntimeError("can't start new thread"))


# Worker pools


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_function_or_a_callback_of_its_future_raises_ends_no_worker(
    name: str, kind: type[BaseException], gate: threading.Event
) -> None:
    pool = WorkerPool(1, name)

    def fail(_: object = None) -> None:
        raise kind("of the application")

    thread = pool.submit(threading.current_thread).result(SOON)
    assert isinstance(pool.submit(fail).exception(SOON), kind)
    future = pool.submit(lambda: gate.wait(SOON))
    future.add_done_callback(fail)
    gate.set()
    assert future.result(SOON)
    assert pool.submit(threading.current_thread).result(SOON) is thread


class NoMemory:
    """Let the next ``Condition.wait`` of a new thread with that name fail: it allocates a lock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, thread_name: str) -> None:
        self.has_failed = False
        self._thread_name = thread_name
        self._older = workers(thread_name)
        self._wait = threading.Condition.wait
        monkeypatch.setattr(threading.Condition, "wait", self._replaced())

    def _replaced(self) -> Callable[[threading.Condition, float | None], bool]:
        def wait(condition: threading.Condition, timeout: float | None = None) -> bool:
            thread = threading.current_thread()
            if thread.name == self._thread_name and thread not in self._older and not self.has_failed:
                self.has_failed = True
                raise MemoryError
            return self._wait(condition, timeout)

        return wait


def test_a_worker_survives_an_error_of_its_waiting(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = WorkerPool(1, name)
    no_memory = NoMemory(monkeypatch, name)
    thread = pool.submit(threading.current_thread).result(SOON)
    wait_until(lambda: no_memory.has_failed)
    assert pool.submit(threading.current_thread).result(SOON) is thread
    assert "unexpected error" in caplog.text


def test_at_most_so_many_threads_in_the_order_of_submission(pool: WorkerPool, name: str, gate: threading.Event) -> None:
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        gate.wait(SOON)
        return number

    futures = [pool.submit(partial(work, number)) for number in range(20)]
    wait_until(lambda: len(begun) == 2)
    assert len(workers(name)) == 2
    gate.set()
    assert [future.result(SOON) for future in futures] == list(range(20))
    assert sorted(begun) == list(range(20))
    assert sorted(begun[:2]) == [0, 1]


def test_a_queued_function_that_is_cancelled_does_not_run(pool: WorkerPool, gate: threading.Event) -> None:
    ran: list[int] = []
    for _ in range(2):
        pool.submit(lambda: gate.wait(SOON))
    queued = pool.submit(lambda: ran.append(1))
    assert queued.cancel()
    gate.set()
    pool.submit(lambda: None).result(SOON)
    assert ran == []


def test_idle_threads_end(pool: WorkerPool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.05)
    pool.submit(lambda: None).result(SOON)
    wait_until(lambda: not workers(name), what="the end of an idle thread")


def test_no_thread_and_no_worker_is_an_error_and_the_next_submit_tries_again(
    pool: WorkerPool, no_threads: NoThreads
) -> None:
    ran: list[str] = []
    with no_threads, pytest.raises(RuntimeError, match="can't start new thread"):
        pool.submit(lambda: ran.append("refused"))
    pool.submit(lambda: ran.append("next")).result(SOON)
    assert ran == ["next"]


def test_without_a_new_thread_the_workers_there_are_do_it(
    pool: WorkerPool, no_threads: NoThreads, gate: threading.Event
) -> None:
    busy = pool.submit(lambda: gate.wait(SOON))
    with no_threads:
        queued = pool.submit(lambda: "done")
        gate.set()
        assert (busy.result(SOON), queued.result(SOON)) == (True, "done")


def test_what_was_interrupted_by_ctrl_c_does_not_run(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller has no future, so it could not know of the call."""
    ran: list[str] = []
    with NoThreads(monkeypatch, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        pool.submit(lambda: ran.append("interrupted"))
    pool.submit(lambda: ran.append("next")).result(SOON)
    assert ran == ["next"]


def test_a_worker_that_has_no_memory_to_begin_a_function_ends_its_future(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the caller would wait for ever."""

    def begin(_: object) -> bool:
        monkeypatch.undo()
        raise MemoryError

    monkeypatch.setattr(Future, "set_running_or_notify_cancel", begin)
    assert isinstance(pool.submit(lambda: 7).exception(SOON), MemoryError)
    assert pool.submit(lambda: 7).result(SOON) == 7


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_child_starts_threads_of_its_own(pool: WorkerPool, gate: threading.Event) -> None:
    ran_in: list[int] = []
    for _ in range(2):
        pool.submit(lambda: gate.wait(SOON))
    queued = pool.submit(lambda: ran_in.append(os.getpid()))

    def child() -> None:
        assert pool.submit(os.getpid).result(SOON) == os.getpid()
        assert ran_in == []

    in_child(child)
    gate.set()
    queued.result(SOON)
    assert ran_in == [os.getpid()]


@pytest.mark.usefixtures("small_heap")
def test_a_function_is_not_kept_longer_than_it_runs(pool: WorkerPool) -> None:
    class Work:
        def __call__(self) -> None:
            raise SystemExit

    work = Work()
    kept = weakref.ref(work)
    assert isinstance(pool.submit(work).exception(SOON), SystemExit)
    del work

    def is_gone() -> bool:
        gc.collect()
        return kept() is None

    wait_until(is_gone)


# The pools of providers


def test_a_provider_has_one_pool_for_each_lane() -> None:
    one, other = InMemoryLockProvider(), InMemoryLockProvider()
    heartbeats, requests = worker_pool(one, "heartbeats"), worker_pool(one, "requests")
    assert heartbeats is not requests
    assert worker_pool(one, "heartbeats") is heartbeats
    assert worker_pool(other, "heartbeats") is not heartbeats


@pytest.mark.usefixtures("small_heap")
def test_the_pool_of_a_provider_that_is_gone_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.05)
    provider = InMemoryLockProvider()
    pool = worker_pool(provider, "heartbeats")
    assert pool.submit(partial(provider.record, "job")).result(SOON) is None
    provider_was, pool_was = weakref.ref(provider), weakref.ref(pool)
    del provider, pool

    def are_gone() -> bool:
        gc.collect()
        return provider_was() is None and pool_was() is None

    wait_until(are_gone)


def test_a_provider_that_cannot_be_hashed_or_referred_to_weakly() -> None:
    class Odd:
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]  # as of a dataclass that can be changed

    assert worker_pool(Odd(), "requests").submit(lambda: 7).result(SOON) == 7


@pytest.mark.parametrize(("value", "most"), [("1", 1), ("9", 9), ("", 4), ("0", 4), ("many", 4)])
def test_the_number_of_threads_for_heartbeats(
    value: str, most: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gate: threading.Event
) -> None:
    monkeypatch.setenv("SHEDLOCK_HEARTBEAT_THREADS", value)
    pool = worker_pool(object(), "heartbeats")
    begun: list[int] = []

    def work() -> None:
        begun.append(1)
        gate.wait(SOON)

    futures = [pool.submit(work) for _ in range(12)]
    wait_until(lambda: len(begun) == most)
    gate.set()
    for future in futures:
        future.result(SOON)
    worker_pool(InMemoryLockProvider(), "heartbeats")
    assert caplog.text.count("SHEDLOCK_HEARTBEAT_THREADS") == (value in ("0", "many"))  # one message for all pools


# Elections


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_request_that_would_end_a_thread_is_an_error(kind: type[BaseException]) -> None:
    def request() -> None:
        raise kind

    provider = InMemoryLockProvider()
    with pytest.raises(Exception, match=kind.__name__) as raised:
        request_in_worker(provider, request, SOON, None)
    assert isinstance(raised.value.__cause__, kind)
    assert request_in_worker(provider, lambda: 7, SOON, None) == 7


# The timer


class Target:
    def __init__(self, *actions: Callable[[], object]) -> None:
        self.actions = list(actions)
        self.calls = 0

    def wake(self) -> None:
        self.calls += 1
        if self.actions:
            self.actions.pop(0)()


def raising(error: BaseException) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("kind", KINDS)
def test_the_timer_survives_a_target_that_raises_and_calls_it_again(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "RETRY_SECONDS", 0.05)
    timer = Timer()
    failing, other = Target(raising(kind("of the target"))), Target()
    timer.schedule(failing.wake, monotonic())
    timer.schedule(other.wake, monotonic() + 0.02)
    wait_until(lambda: failing.calls == 2 and other.calls == 1)
    assert "unexpected error" in caplog.text


def test_the_timer_survives_an_error_of_its_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise its thread would end, and no lease of this process would be kept alive any more."""
    no_memory = NoMemory(monkeypatch, "shedlock-timer")
    timer, target = Timer(), Target()
    timer.schedule(target.wake, monotonic() + 0.05)
    wait_until(lambda: target.calls == 1)
    assert no_memory.has_failed
    assert "unexpected error" in caplog.text


def test_a_timer_that_cannot_start_tries_again(no_threads: NoThreads) -> None:
    timer, first, second = Timer(), Target(), Target()
    with no_threads, pytest.raises(RuntimeError, match="can't start new thread"):
        timer.schedule(first.wake, monotonic())
    timer.schedule(second.wake, monotonic())
    wait_until(lambda: first.calls == 1 and second.calls == 1)


def test_a_timer_without_targets_keeps_its_thread(no_threads: NoThreads) -> None:
    """Python 3.12 and later start no threads while the interpreter ends."""
    timer, target = Timer(), Target()
    threads: list[threading.Thread] = []
    timer.schedule(lambda: threads.append(threading.current_thread()), monotonic())
    wait_until(lambda: threads)
    timer.schedule(target.wake, monotonic())
    wait_until(lambda: target.calls == 1)
    timer.schedule(target.wake, monotonic() + 60)
    timer.cancel(target.wake)
    threads[0].join(0.1)
    assert threads[0].is_alive()
    with no_threads:
        timer.schedule(target.wake, monotonic() + 0.05)
        wait_until(lambda: target.calls == 2)


# The end of the interpreter

EXIT = """
import atexit, threading, time
from shedlock_py.runtime.threads import WorkerPool, finish_at_exit
atexit.register(print, "closed")  # as applications close their clients
begun = threading.Event()
def work():
    begun.set()
    time.sleep({seconds})
    print("finished", flush=True)
future = WorkerPool(1, "pool").submit(work)
if {is_waited_for}:
    finish_at_exit(future)
begun.wait()
print("bye", flush=True)
"""


@pytest.mark.not_quick("starts a Python")
@pytest.mark.parametrize(
    ("seconds", "is_waited_for", "output"),
    [
        (0.3, True, ["bye", "finished", "closed"]),  # a release in progress
        (3600, True, ["bye", "closed"]),  # a release at a store that hangs
        (3600, False, ["bye", "closed"]),  # anything else
    ],
)
def test_the_end_of_the_interpreter(seconds: float, is_waited_for: bool, output: list[str]) -> None:
    script = EXIT.format(seconds=seconds, is_waited_for=is_waited_for)
    began = monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, output, "")
    assert monotonic() - began < 20


EXIT_OF_A_CHILD = """
import os, threading, time
from shedlock_py.runtime import threads
from shedlock_py.testing.forks import python_fork
threads.EXIT_SECONDS = 60
gate = threading.Event()
threads.finish_at_exit(threads.WorkerPool(1, "pool").submit(gate.wait))
if child := python_fork():
    began = time.monotonic()
    os.waitpid(child, 0)
    print(time.monotonic() - began)
    gate.set()
"""


@pytest.mark.not_quick("starts a Python")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_child_does_not_wait_for_its_parents_releases() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT_OF_A_CHILD], capture_output=True, text=True, timeout=100, check=True
    )
    assert float(done.stdout) < 30


def end(timer: Timer) -> None:
    with timer._mutex:
        timer._thread = None
        timer._changed.notify()


def ends_in_another_thread(call: Callable[[], object]) -> bool:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(SOON)
    return not thread.is_alive()


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """If another test has loaded Hypothesis, it runs code at each collection, and the handler would interrupt that
    code."""
    gc.disable()
    yield
    gc.enable()


@moments_are_known
@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("method", ["submit", "schedule", "cancel"])
def test_an_exception_of_a_signal_handler_keeps_no_lock(method: str, name: str) -> None:
    """The thread exists already: leftovers of an interrupted ``Thread.start`` are Python's."""
    number, is_over = 0, False
    while not is_over:
        pool, timer = WorkerPool(1, name), Timer()
        pool.submit(bool).result(SOON)
        timer.schedule(float, monotonic() + 60)
        calls: dict[str, Callable[[], object]] = {
            "submit": partial(pool.submit, bool),
            "schedule": partial(timer.schedule, int, monotonic() + 30),
            "cancel": partial(timer.cancel, float),
        }
        is_over = not interrupted(calls[method], number)
        assert ends_in_another_thread(calls[method]), f"moment {number}"
        timer.cancel(int)
        timer.cancel(float)
        end(timer)
        number += 1
    assert number > 1


def test_a_suspended_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeping does not count the time of a suspension. The clock of leases does."""
    jump = 0.0
    monkeypatch.setattr(threads, "monotonic", lambda: monotonic() + jump)
    monkeypatch.setattr(threads, "LONGEST_SLEEP", 0.05)
    called = threading.Event()
    timer = Timer()
    timer.schedule(called.set, monotonic() + 60)
    assert not called.wait(0.2)
    jump = 61.0
    assert called.wait(SOON)
