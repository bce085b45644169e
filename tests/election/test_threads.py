"""Tests specific to threads: listeners, errors in threads, and a machine without threads."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from functools import partial
from time import monotonic
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    ConfigurationError,
    Event,
    InMemoryLockProvider,
    LeaderElector,
    LeadershipStarted,
    LeadershipStopped,
    configure,
)
from shedlock_py.testing.forks import in_child
from tests.election.conftest import MakeElector
from tests.election.electors import LONG, in_background
from tests.election.test_elector import is_released, lead
from tests.support import forked
from tests.support.doubles import FaultyProvider
from tests.support.polling import wait_until
from tests.support.signals import interrupted, moments_are_known

pytestmark = pytest.mark.parametrize("kind", ["threads"], indirect=True)


def test_stop_in_a_listener_returns_at_once(make_elector: MakeElector, store: FaultyProvider) -> None:
    stopped: list[bool] = []
    elector = make_elector(**LONG)

    def listen(event: object) -> None:
        if isinstance(event, LeadershipStarted):
            stopped.append(elector.stop())

    with configure(listeners=[listen]):
        elector.start()
        wait_until(lambda: stopped == [False], what="stop() returned")
        assert elector.stop("10s")
    assert is_released(store)


@moments_are_known
@pytest.mark.parametrize("method", ["stop", "wait_until_leader"])
def test_an_exception_of_a_signal_handler_keeps_no_lock(method: str, make_elector: MakeElector) -> None:
    """A signal may interrupt a call of the main thread at any moment. With a lock kept, the election would stand
    still."""
    number, is_over = 0, False
    while not is_over:
        elector = make_elector(**LONG)
        lead(elector)
        is_over = not interrupted(partial(getattr(elector, method), "0s"), number)
        thread, ended = in_background(elector.stop)
        thread.join(10)
        assert ended == [True], f"moment {number}"
        number += 1
    assert number > 5


@pytest.mark.not_quick("waits for real seconds")
def test_a_callback_of_a_former_start_delays_no_release(make_elector: MakeElector, store: FaultyProvider) -> None:
    called: list[int] = []
    may_end = threading.Event()

    def hang_at_first() -> None:
        called.append(len(called))
        if len(called) == 1:
            may_end.wait(60)

    elector = make_elector(on_started_leading=hang_at_first)
    try:
        lead(elector)
        wait_until(lambda: called, what="the first call")
        store.fail()
        assert elector.stop("10s"), "it cannot renew, and its lease expires"
        store.recover()
        lead(elector)
        assert elector.stop("10s")
        assert is_released(store)
    finally:
        may_end.set()


def test_an_elector_starts_in_a_child_although_a_thread_of_the_parent_is_inside_it(
    make_elector: MakeElector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child inherits locks in their state at the fork, but no thread that could release them."""
    is_inside, may_go_on = threading.Event(), threading.Event()

    def clock() -> float:
        if threading.current_thread().name == "inside":
            is_inside.set()
            may_go_on.wait(60)
        return monotonic()

    monkeypatch.setattr("shedlock_py.election.base.monotonic", clock)
    elector = make_elector(**LONG)
    lead(elector)
    thread = threading.Thread(target=elector.wait_until_leader, args=("10s",), name="inside")
    thread.start()
    assert is_inside.wait(10)

    def child() -> None:
        for _ in range(8):  # otherwise the elector's thread may get the identity of a thread that holds a lock
            threading.Thread(target=may_go_on.wait, daemon=True).start()
        elector.start()
        assert not elector.wait_until_leader("100ms"), "the parent leads"
        assert elector.stop("10s")

    try:
        in_child(child)
    finally:
        may_go_on.set()
        thread.join()


def test_a_listener_that_calls_sys_exit_does_not_end_a_leadership(
    make_elector: MakeElector, store: FaultyProvider
) -> None:
    called: list[str] = []
    elector = make_elector(on_started_leading=lambda: called.append("started"), **LONG)
    with configure(listeners=[lambda _: sys.exit(3)]):
        lead(elector)
        wait_until(lambda: called == ["started"], what="the callback")
        renewals = store.calls["extend"]
        wait_until(lambda: store.calls["extend"] > renewals + 1, what="renewals")
        assert elector.is_leader()
        assert elector.stop("10s")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_callback_that_raises_anything_leaves_nobody_busy(
    make_elector: MakeElector, store: FaultyProvider, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error("of a callback")

    elector = make_elector(on_stopped_leading=fail, **LONG)
    lead(elector)
    assert elector.stop("10s")
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["of a callback"]
    assert is_released(store)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_log_handler_that_raises_leaves_nobody_busy(make_elector: MakeElector, store: FaultyProvider) -> None:
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no room for the log")

    threads: list[threading.Thread] = []

    def fail() -> None:
        threads.append(threading.current_thread())
        raise ValueError("of a callback")

    logger, handler = logging.getLogger("shedlock_py"), Failing()
    logger.addHandler(handler)
    try:
        elector = make_elector(on_stopped_leading=fail, **LONG)
        lead(elector)
        assert elector.stop("10s")
        threads[0].join(10)
    finally:
        logger.removeHandler(handler)
    assert is_released(store)


class Blocking(LeaderElector):
    """Block the thread ``waiter`` while it holds the condition that callers wait on."""

    waiter: threading.Thread | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.is_waiting, self.may_go_on = threading.Event(), threading.Event()

    def is_leader(self) -> bool:
        if threading.current_thread() is self.waiter:
            self.is_waiting.set()
            self.may_go_on.wait(30)
        return super().is_leader()


def test_an_elector_that_the_parent_has_not_started_starts_in_a_forked_child(kind: str) -> None:
    """A thread of the parent had its condition locked at the fork."""
    elector = Blocking(InMemoryLockProvider(), "election", **LONG)

    def wait() -> object:
        elector.waiter = threading.current_thread()
        return elector.wait_until_leader("0s")

    waiter, results = in_background(wait)
    assert elector.is_waiting.wait(10)

    def child() -> None:
        elector.start()
        assert elector.wait_until_leader("10s")
        assert elector.stop("10s")

    in_child(child)
    elector.may_go_on.set()
    waiter.join(10)
    assert results == [False]


HANDLER = """
import signal, time
from shedlock_py import InMemoryLockProvider, LeaderElector

elector = LeaderElector(InMemoryLockProvider(), "election", lease_duration="1h", renew_deadline="50m")
elector.start()
assert elector.wait_until_leader("20s")
signal.signal(signal.SIGALRM, lambda number, frame: elector.resign())
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
until = time.monotonic() + 1
while time.monotonic() < until:
    elector.resign()
signal.setitimer(signal.ITIMER_REAL, 0)
print(elector.stop("20s"))
"""


@pytest.mark.not_quick("starts a program for its signals")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Unix has it")
def test_a_signal_handler_may_resign_while_the_program_resigns(kind: str) -> None:
    """The handler must not wait for a lock that the interrupted code holds."""
    done = forked.run(["-c", HANDLER])
    assert (done.stdout, done.stderr) == ("True\n", "")


# A machine that starts no more threads


class NoThreads:
    """Let no thread start, as in a container at its process limit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = 0
        self._is_over = False
        start = threading.Thread.start

        def start_none(thread: threading.Thread) -> None:
            if self._is_over:
                start(thread)
                return
            self.refused += 1
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", start_none)

    def end(self) -> None:
        self._is_over = True


def test_start_without_a_thread_is_an_error_and_can_be_repeated(
    make_elector: MakeElector, monkeypatch: pytest.MonkeyPatch
) -> None:
    elector = make_elector()
    shortage = NoThreads(monkeypatch)
    with pytest.raises(RuntimeError, match=r"election.*could not start.*thread.*start\(\) again"):
        elector.start()
    assert not elector.is_leader()
    assert elector.stop("1s")
    assert elector.wait_until_leader() is False
    shortage.end()
    lead(elector)


@pytest.mark.not_quick("waits for real seconds")
def test_callbacks_without_a_thread_are_called_when_there_is_one(
    make_elector: MakeElector, store: FaultyProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []
    elector = make_elector(
        on_started_leading=lambda: called.append("started"),
        on_stopped_leading=lambda: called.append("stopped"),
        lease_duration="6s", renew_deadline="5s", retry_period="50ms",
    )  # fmt: skip
    store.fail()
    elector.start()
    wait_until(lambda: store.calls["record"] > 1, what="the elector runs")
    elector.add_callbacks(on_renewed=lambda: called.append("renewed"))
    shortage = NoThreads(monkeypatch)
    store.recover()
    assert elector.wait_until_leader("20s")
    wait_until(lambda: shortage.refused > 2, what="tried again")
    assert elector.is_leader()
    assert called == []
    shortage.end()
    wait_until(lambda: "started" in called and "renewed" in called, what="called in the end")
    assert called.count("started") == 1
    shortage = NoThreads(monkeypatch)
    wait_until(lambda: shortage.refused > 15, what="renewals")
    renewed = called.count("renewed")
    shortage.end()
    wait_until(lambda: called.count("renewed") > renewed, what="called in the end")
    assert called.count("renewed") < renewed + 5, "once for all renewals meanwhile"
    shortage = NoThreads(monkeypatch)
    elector.resign()
    refused = shortage.refused
    wait_until(lambda: shortage.refused > refused + 2, what="tried again")
    record = store.inner.record("election")
    assert record.holder == "me", "the lease is released last, also when a callback waits for its thread"
    assert record.is_held
    shortage.end()
    wait_until(lambda: "stopped" in called, what="called in the end")
    assert elector.stop("10s")
    assert "can't start new thread" in caplog.text


@pytest.mark.not_quick("waits for real seconds")
def test_callbacks_that_never_got_a_thread_are_called_at_the_end(
    make_elector: MakeElector, store: FaultyProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    elector = make_elector(on_stopped_leading=lambda: called.append("stopped"))
    lead(elector)
    NoThreads(monkeypatch)
    store.fail()  # the lease ends while the callback waits for a thread
    assert elector.stop("10s")
    assert called == ["stopped"]


def test_an_async_provider_is_refused(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=r"AsyncInMemoryLockProvider is an async provider.*AsyncLeaderElector"):
        LeaderElector(AsyncInMemoryLockProvider(), "election")  # type: ignore[arg-type]  # wrong on purpose


def test_two_threads_that_start_it_at_once(make_elector: MakeElector, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two campaigns, nobody could stop the replaced one."""
    elector = make_elector(**LONG)
    gate, failures = threading.Barrier(8), []
    start_thread = threading.Thread.start

    def start_slowly(thread: threading.Thread) -> None:
        if thread.name.startswith("shedlock-elector"):
            threading.Event().wait(0.05)  # seconds: the other threads arrive meanwhile
        start_thread(thread)

    monkeypatch.setattr(threading.Thread, "start", start_slowly)

    def start() -> None:
        gate.wait(20)
        try:
            elector.start()
        except RuntimeError as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(failures) == 7
    assert elector.wait_until_leader("20s")
    assert elector.stop("20s")
    assert elector.leader() is None, "another campaign goes on"


def test_a_renewal_callback_that_cannot_be_hashed(make_elector: MakeElector) -> None:
    class Renewed(list[None]):
        def __call__(self) -> None:
            self.append(None)

    elector, renewed = make_elector(**LONG), Renewed()
    elector.add_callbacks(on_renewed=renewed)
    assert lead(elector)
    wait_until(lambda: len(renewed) > 2)
    assert elector.is_leader()


def test_a_listener_that_waits_for_the_elector_which_calls_it(make_elector: MakeElector) -> None:
    results: list[bool] = []

    def lead_again(event: Event) -> None:
        if isinstance(event, LeadershipStopped):
            results.append(elector.take_over())

    with configure(listeners=[lead_again]):
        elector = make_elector(**LONG)
        assert lead(elector)
        elector.resign()
        wait_until(lambda: results == [False])
        assert elector.wait_until_leader("20s")


def test_a_coroutine_function_as_a_callback(make_elector: MakeElector) -> None:
    async def work() -> None:
        raise NotImplementedError

    for option in ("on_started_leading", "on_stopped_leading", "on_new_leader"):
        with pytest.raises(ConfigurationError, match="AsyncLeaderElector can"):
            make_elector(**{option: work})
