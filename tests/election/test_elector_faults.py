"""What callbacks, listeners and a machine without threads do to an elector; and who waits for one that has stopped."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    ConfigurationError,
    LeaderElector,
    LeadershipStarted,
    LeadershipStopped,
    LockRequest,
    configure,
)
from shedlock_py.testing import RecordingListener
from tests.election.conftest import MakeElector
from tests.support.doubles import FaultyProvider
from tests.support.polling import wait_until

LONG: dict[str, Any] = {"lease_duration": "1h", "renew_deadline": "50m", "retry_period": "50ms"}
"""Nothing but what the test does ends such a leadership."""


def in_background(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread, results


# stop() and resign()


def test_stop_in_a_callback_returns_at_once_and_the_lease_is_released(
    make_elector: MakeElector, store: FaultyProvider
) -> None:
    stopped: list[bool] = []

    def work() -> None:
        stopped.append(elector.stop())

    elector = make_elector(on_started_leading=work, **LONG)
    elector.start()
    wait_until(lambda: stopped == [False], what="stop() returned")
    assert not elector.is_leader()
    assert elector.stop("10s")
    assert store.acquire(LockRequest("election", "1m")) is not None


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
    assert store.acquire(LockRequest("election", "1m")) is not None


@pytest.mark.parametrize("how", ["resign", "stop"])
def test_a_node_that_gives_up_its_leadership_is_no_leader_from_that_moment(make_elector: MakeElector, how: str) -> None:
    may_end = threading.Event()
    elector = make_elector(on_started_leading=lambda: may_end.wait(20), **LONG)
    elector.start()
    assert elector.wait_until_leader("10s")
    if how == "resign":
        elector.resign()
    else:
        assert elector.stop(0) is False  # 0: does not wait
    assert not elector.is_leader()
    assert elector.term is None
    may_end.set()
    assert elector.stop("10s")


# Waiting for an elector that will never lead


@pytest.mark.parametrize("call", ["wait_until_leader", "take_over"])
def test_who_waits_for_an_elector_that_does_not_take_part(make_elector: MakeElector, call: str) -> None:
    elector = make_elector()
    thread, results = in_background(getattr(elector, call))
    thread.join(5)
    assert results == [False], "never started"
    elector.start()
    assert elector.stop("10s")
    thread, results = in_background(getattr(elector, call))
    thread.join(5)
    assert results == [False], "stopped"


@pytest.mark.parametrize("call", ["wait_until_leader", "take_over"])
def test_who_waits_while_an_elector_is_stopped(make_elector: MakeElector, store: FaultyProvider, call: str) -> None:
    leader, elector = make_elector("leader", **LONG), make_elector(**LONG)
    leader.start()
    assert leader.wait_until_leader("10s")
    elector.start()
    thread, results = in_background(getattr(elector, call))
    wait_until(lambda: store.calls["record"] > 1, what="the elector follows")
    if call == "take_over":
        wait_until(lambda: store.calls["take_over"] == 1, what="it has taken over, and waits to lead")
    assert not results
    assert elector.stop("10s")
    thread.join(5)
    assert results == [False]


# A machine that starts no more threads


class NoThreads:
    """As a container whose limit of processes is reached."""

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
    elector.start()
    assert elector.wait_until_leader("10s")


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
    elector.resign()
    refused = shortage.refused
    wait_until(lambda: shortage.refused > refused + 2, what="tried again")
    record = store.record("election")
    assert record is not None
    assert record.holder == "me", "the lease is released last, also when a callback waits for its thread"
    assert record.is_held
    shortage.end()
    wait_until(lambda: "stopped" in called, what="called in the end")
    assert elector.stop("10s")
    assert "can't start new thread" in caplog.text


def test_callbacks_that_never_got_a_thread_are_called_at_the_end(
    make_elector: MakeElector, store: FaultyProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    elector = make_elector(on_stopped_leading=lambda: called.append("stopped"))
    elector.start()
    assert elector.wait_until_leader("10s")
    wait_until(lambda: not elector._callbacks.are_running())
    NoThreads(monkeypatch)
    store.fail()  # the lease ends while the callback waits for a thread
    assert elector.stop("10s")
    assert called == ["stopped"]


# What callbacks and listeners raise


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_callback_that_raises_anything_leaves_nobody_busy(
    make_elector: MakeElector, store: FaultyProvider, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error("of a callback")

    elector = make_elector(on_started_leading=fail, on_stopped_leading=fail, **LONG)
    elector.start()
    assert elector.wait_until_leader("10s")
    wait_until(lambda: not elector._callbacks.are_running(), what="the callback has ended")
    assert elector.is_leader()
    assert elector.stop("10s")
    assert caplog.text.count("of a callback") >= 2
    assert store.acquire(LockRequest("election", "1m")) is not None


def test_a_listener_that_calls_sys_exit_does_not_end_a_leadership(
    make_elector: MakeElector, store: FaultyProvider
) -> None:
    called: list[str] = []
    elector = make_elector(on_started_leading=lambda: called.append("started"), **LONG)
    with configure(listeners=[lambda _: sys.exit(3)]):
        elector.start()
        assert elector.wait_until_leader("10s")
        wait_until(lambda: called == ["started"], what="the callback")
        renewals = store.calls["extend"]
        wait_until(lambda: store.calls["extend"] > renewals + 1, what="renewals")
        assert elector.is_leader()
        assert elector.stop("10s")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError])
def test_a_campaign_that_ends_in_any_way_ends_the_leadership(
    make_elector: MakeElector, heard: RecordingListener, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error("nobody expects it")

    elector = make_elector(**LONG)
    elector._callbacks.call_renewed = fail  # type: ignore[method-assign]  # fails inside the campaign
    elector.start()
    assert elector.wait_until_leader("10s")
    wait_until(lambda: heard.of(LeadershipStopped))
    assert not elector.is_leader()
    assert elector.wait_until_leader() is False
    assert elector.take_over() is False
    assert elector.stop("10s")
    assert "nobody expects it" in caplog.text


# Input


def test_an_async_provider_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"AsyncInMemoryLockProvider is an async provider.*AsyncLeaderElector"):
        LeaderElector(AsyncInMemoryLockProvider(), "election")  # type: ignore[arg-type]  # wrong on purpose
