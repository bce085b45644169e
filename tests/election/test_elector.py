"""Tests for both kinds of electors: one elector, and several in one process."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    LeaderChanged,
    LeaderElector,
    LeadershipStarted,
    LeadershipStopped,
    LockRequest,
    ProviderFailed,
    leader_only,
)
from shedlock_py.testing import RecordingListener
from shedlock_py.testing.forks import in_child
from tests.election.conftest import MakeElector
from tests.election.electors import DURATIONS, LONG, LoopElector, in_background, in_thread, real_time
from tests.support.doubles import FaultyProvider
from tests.support.holders import unchecked
from tests.support.polling import wait_until


def wait_seconds(seconds: float) -> None:
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until)


def lead(elector: Any) -> Any:
    """Start an elector, wait until it leads, and return its term."""
    elector.start()
    assert elector.wait_until_leader("10s")
    return elector.term


def is_released(store: FaultyProvider) -> bool:
    return bool(store.inner.acquire(LockRequest("election", "1m")))


# Leading and following


def test_a_pause_is_no_leader(store: FaultyProvider, make_elector: MakeElector, listener: RecordingListener) -> None:
    elector = make_elector()
    assert store.inner.pause("election", "1h").is_paused
    elector.start()
    wait_until(lambda: store.calls["record"] >= 3)
    assert not elector.is_leader()
    assert elector.leader() is None
    assert store.inner.resume("election")
    assert elector.wait_until_leader("10s")
    wait_until(lambda: listener.of(LeaderChanged), what="the event")
    assert [event.holder for event in listener.of(LeaderChanged)] == ["me"]


@real_time
def test_the_only_node_leads(make_elector: MakeElector, listener: RecordingListener) -> None:
    elector = make_elector()
    assert not elector.is_leader()
    assert elector.term is None
    assert elector.leader() is None
    assert not elector.takes_part
    assert not elector.trusted_for()
    term = lead(elector)
    assert elector.takes_part
    record = elector.leader()
    assert (record.holder, record.fencing_token) == ("me", term)
    wait_seconds(1.5)  # more than two leases
    assert elector.term == term
    assert elector.stop()
    assert not elector.is_leader()
    assert elector.leader() is None
    assert not elector.takes_part
    assert not elector.trusted_for()
    assert [type(event) for event in listener.events] == [LeadershipStarted, LeaderChanged, LeadershipStopped]
    assert listener.of(LeadershipStarted) == [LeadershipStarted("election", "me", term)]
    assert listener.of(LeadershipStopped) == [LeadershipStopped("election", "me", term, "resigned")]


@real_time
def test_a_follower_follows(make_elector: MakeElector, listener: RecordingListener) -> None:
    first, second = make_elector("first"), make_elector("second")
    term = lead(first)
    second.start()
    assert not second.wait_until_leader("1s")
    assert second.leader().holder == "first"
    assert first.stop("10s")
    assert second.wait_until_leader("10s")
    assert second.term > term
    wait_until(lambda: len(listener.of(LeaderChanged)) >= 3)  # a node notifies of itself just after it leads
    assert [event.holder for event in listener.of(LeaderChanged)] == ["first", "first", "second"]  # each node emits one


@pytest.mark.parametrize("fault", ["fail", pytest.param("hang", marks=real_time)])
def test_i6_a_leader_without_a_store_stops_before_its_lease_ends(
    make_elector: MakeElector, store: FaultyProvider, listener: RecordingListener, fault: str
) -> None:
    elector = make_elector()
    lead(elector)
    getattr(store, fault)()
    was_leader = True
    while was_leader:
        record = store.inner.record("election")
        was_leader, trusted = elector.is_leader(), elector.trusted_for()
        assert record.is_held or not was_leader  # the leader must stop first
        assert trusted <= record.remaining
        time.sleep(0.001)
    wait_until(lambda: listener.of(LeadershipStopped))
    assert [event.reason for event in listener.of(LeadershipStopped)] == ["unreachable"]
    store.recover()
    assert elector.wait_until_leader("10s")


def test_failed_renewals_before_the_deadline_do_not_end_a_leadership(
    make_elector: MakeElector, store: FaultyProvider, listener: RecordingListener
) -> None:
    elector = make_elector(lease_duration="6s", renew_deadline="4s", retry_period="50ms")
    term = lead(elector)
    store.fail()
    wait_until(lambda: len(listener.of(ProviderFailed)) >= 5)
    store.recover()
    before = store.calls["extend"]
    wait_until(lambda: store.calls["extend"] > before + 2)
    assert elector.term == term
    assert {event.operation for event in listener.of(ProviderFailed)} == {"extend"}


# Taking over and demoting


@real_time
@pytest.mark.parametrize("is_cut_off", [True, False])
def test_take_over_is_exclusive(
    make_elector: MakeElector, store: FaultyProvider, listener: RecordingListener, is_cut_off: bool
) -> None:
    """A node that takes over leads only when the former leader no longer trusts its lease, even without the store."""
    durations = {"lease_duration": "3s", "renew_deadline": "2s"}
    connection = FaultyProvider(store.inner)
    former, taker = make_elector("former", connection, **durations), make_elector("taker", **durations)
    term = lead(former)
    taker.start()
    if is_cut_off:
        connection.fail()
    thread, results = in_background(lambda: taker.take_over("10s"))
    while not taker.is_leader():
        assert not (taker.is_leader() and former.is_leader())
        time.sleep(0.001)
    assert not former.is_leader()
    assert taker.term > term
    thread.join()
    assert results == [True]
    connection.recover()
    wait_until(lambda: listener.of(LeadershipStopped))
    reason = "unreachable" if is_cut_off else "revoked"
    assert [(event.holder, event.reason) for event in listener.of(LeadershipStopped)] == [("former", reason)]
    assert taker.take_over("10s")  # it leads already


@real_time
def test_two_that_take_over_at_once_end_with_one_leader(make_elector: MakeElector) -> None:
    electors = former, one, other = [make_elector(holder) for holder in ("former", "one", "other")]
    lead(former)
    one.start()
    other.start()
    calls = [in_background(lambda elector=elector: elector.take_over("10s")) for elector in (one, other)]  # type: ignore[misc]  # a default binds it now
    for thread, _ in calls:
        thread.join()
    assert sorted(bool(result) for _, (result,) in calls) == [False, True]
    leader = one if calls[0][1] == [True] else other
    until = time.monotonic() + 1
    while time.monotonic() < until:
        assert [elector.holder for elector in electors if elector.is_leader()] == [leader.holder]
        time.sleep(0.01)


@real_time
def test_i1_a_node_that_leads_just_before_a_take_over_is_waited_for(
    make_elector: MakeElector, store: FaultyProvider
) -> None:
    rival = make_elector("rival", FaultyProvider(store.inner))

    class Late(FaultyProvider):
        """A store where another node leads before this node's acquire arrives."""

        def acquire(self, request: LockRequest) -> Any:
            lead(rival)
            return super().acquire(request)

    late = LeaderElector(Late(store.inner), "election", holder="late", **DURATIONS)
    late.start()
    thread, _ = in_background(lambda: late.take_over("10s"))
    while not late.is_leader():
        assert not (rival.is_leader() and late.is_leader())
        time.sleep(0.001)
    assert not rival.is_leader()
    thread.join()
    late.stop("10s")


@real_time
def test_demote_with_a_cooldown(make_elector: MakeElector) -> None:
    """Only the demoted node rests, not another node with the same start of its name."""
    first, tenth = make_elector("node-1"), make_elector("node-10")
    assert tenth.demote() is False
    lead(first)
    tenth.start()
    assert tenth.demote(cooldown="1h")
    assert tenth.leader() is None
    assert tenth.wait_until_leader("10s")
    assert not first.is_leader()
    assert tenth.stop("10s")
    assert not first.wait_until_leader("1s")


def test_a_holder_that_looks_like_a_demotion_without_end(make_elector: MakeElector, store: FaultyProvider) -> None:
    lease = store.inner.acquire(unchecked("election", "1m", f"demoted {10**30}ms other"))
    elector = make_elector()
    elector.start()
    assert elector.leader() is None
    wait_until(lambda: store.calls["record"] > 2, what="the elector has read the record")
    store.inner.release(lease)
    assert elector.wait_until_leader("10s")


@real_time
def test_a_demoted_node_alone_leads_again(make_elector: MakeElector) -> None:
    elector = make_elector()
    term = lead(elector)
    assert elector.demote(cooldown="500ms")
    wait_until(lambda: not elector.is_leader())
    assert elector.wait_until_leader("10s")
    assert elector.term != term


# Resigning and stopping


@real_time
def test_resign_lets_another_lead(make_elector: MakeElector) -> None:
    # A node rests for two retry periods after it resigned. The other node must read the record within them.
    slow = {"lease_duration": "9s", "renew_deadline": "7s", "retry_period": "800ms"}
    seen: dict[str, list[str]] = {"first": [], "second": []}
    first, second = (make_elector(name, on_new_leader=seen[name].append, **slow) for name in seen)
    lead(first)
    second.start()
    wait_until(lambda: "first" in seen["second"], what="the second follows the first")
    first.resign()
    assert second.wait_until_leader("10s")
    assert not first.is_leader()
    wait_until(lambda: "second" in seen["first"], what="the first follows the second")
    second.resign()
    assert first.wait_until_leader("10s")


@real_time
def test_callbacks_in_order_and_leadership_is_released_last(make_elector: MakeElector, store: FaultyProvider) -> None:
    steps: list[str] = []
    may_end = threading.Event()

    def work() -> None:
        steps.append("started")
        may_end.wait(20)
        steps.append("work ended")

    elector = make_elector(
        on_started_leading=work,
        on_stopped_leading=lambda: steps.append("stopped"),
        on_new_leader=lambda holder: steps.append(f"new leader {holder}"),
    )
    lead(elector)
    wait_until(lambda: len(steps) == 2)
    assert elector.stop("300ms") is False  # the work continues …
    assert not elector.is_leader()
    until = time.monotonic() + 1.5
    while time.monotonic() < until:  # … and no other node gets the lock for more than a lease
        assert not is_released(store)
        assert elector.trusted_for().total_seconds() > 0.2  # the lease is renewed all the time
        time.sleep(0.02)
    assert not elector.takes_part
    may_end.set()
    assert elector.stop("10s") is True
    assert is_released(store)
    assert sorted(steps[:2]) == ["new leader me", "started"]
    assert steps[2:] == ["stopped", "work ended"]


def test_stop_in_a_callback_returns_at_once_and_the_lease_is_released(
    make_elector: MakeElector, store: FaultyProvider
) -> None:
    stopped: list[bool] = []
    elector: Any = make_elector(on_started_leading=lambda: stopped.append(elector.stop()), **LONG)
    elector.start()
    wait_until(lambda: stopped == [False], what="stop() returned")
    assert not elector.is_leader()
    assert elector.stop("10s")
    assert is_released(store)


@pytest.mark.parametrize("how", ["resign", "stop"])
def test_a_node_that_gives_up_its_leadership_is_no_leader_from_that_moment(make_elector: MakeElector, how: str) -> None:
    may_end = threading.Event()
    elector = make_elector(on_started_leading=lambda: may_end.wait(20), **LONG)
    lead(elector)
    if how == "resign":
        elector.resign()
    else:
        assert elector.stop(0) is False  # 0 does not wait
    assert not elector.is_leader()
    assert elector.term is None
    may_end.set()
    assert elector.stop("10s")


def test_start_twice_and_again(make_elector: MakeElector) -> None:
    elector = make_elector()
    elector.start()
    with pytest.raises(RuntimeError, match="started already"):
        elector.start()
    assert elector.stop("10s")
    assert elector.stop("10s")
    lead(elector)


# Waiting for an elector


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
    lead(leader)
    elector.start()
    thread, results = in_background(getattr(elector, call))
    wait_until(lambda: store.calls["record"] > 1, what="the elector follows")
    if call == "take_over":
        wait_until(lambda: store.calls["take_over"] == 1, what="it has taken over, and waits to lead")
    assert not results
    assert elector.stop("10s")
    thread.join(5)
    assert results == [False]


@pytest.mark.parametrize("call", ["wait_until_leader", "take_over"])
def test_who_waits_in_a_callback_of_a_leader_that_resigns(make_elector: MakeElector, call: str) -> None:
    """A callback must not wait for the lease's release, which waits for the callback."""
    results: list[bool] = []
    leader: Any = make_elector("leader", on_stopped_leading=lambda: results.append(getattr(leader, call)()), **LONG)
    term = lead(leader)
    leader.resign()
    wait_until(lambda: results)
    assert results[0] is False
    wait_until(lambda: leader.is_leader() and leader.term != term, what="the next term")


def test_who_waits_before_it_is_started(make_elector: MakeElector, store: FaultyProvider) -> None:
    elector = make_elector(provider=FaultyProvider(store.inner))
    thread, results = in_background(lambda: elector.wait_until_leader("20s"))
    assert thread.is_alive()
    elector.start()
    wait_until(lambda: results == [True])


# Callbacks, and a campaign that fails


def test_a_callback_that_cannot_be_called(make_elector: MakeElector) -> None:
    elector = make_elector()
    with pytest.raises(ConfigurationError, match="must be a function, not 'start'"):
        elector.add_callbacks(on_renewed="start")


def test_a_renewal_callback_that_hangs_is_not_called_again(make_elector: MakeElector, store: FaultyProvider) -> None:
    called: list[None] = []
    may_end = threading.Event()

    def hang() -> None:
        called.append(None)
        may_end.wait(20)

    elector = make_elector(**LONG)
    elector.add_callbacks(on_renewed=hang if isinstance(elector, LeaderElector) else in_thread(hang))
    lead(elector)
    wait_until(lambda: store.calls["extend"] > 5, what="renewals")
    assert len(called) == 1
    may_end.set()
    wait_until(lambda: len(called) > 1, what="it is called again")


@real_time
def test_a_callback_that_raises_or_hangs_delays_nothing(make_elector: MakeElector) -> None:
    may_end = threading.Event()

    def fail(*_: object) -> None:
        raise RuntimeError("of a callback")

    elector = make_elector(on_started_leading=lambda: may_end.wait(20), on_new_leader=fail)
    term = lead(elector)
    wait_seconds(1.5)
    assert elector.term == term
    may_end.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        *(("threads", error) for error in (RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError)),
        ("asyncio", RuntimeError),
    ],
    indirect=["kind"],
)
def test_a_campaign_that_ends_in_any_way_ends_the_leadership(
    make_elector: MakeElector,
    kind: str,
    listener: RecordingListener,
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elector = make_elector(**LONG)

    def clock() -> float:
        if elector.is_leader():
            raise error("an unexpected error")
        return time.monotonic()

    module = "elector" if kind == "threads" else "async_elector"
    monkeypatch.setattr(f"shedlock_py.election.{module}.monotonic", clock)  # the clock that it waits by
    elector.start()
    wait_until(lambda: listener.of(LeadershipStopped))
    assert not elector.is_leader()
    assert [event.reason for event in listener.of(LeadershipStopped)] == ["unreachable"]
    assert elector.wait_until_leader() is False
    assert elector.take_over() is False
    assert not elector.takes_part
    assert elector.stop("10s")
    assert "an unexpected error" in caplog.text


# Forks


@pytest.mark.parametrize("kind", ["threads"], indirect=True)
def test_a_forked_child_does_not_lead_and_may_start_an_elector_of_its_own(make_elector: MakeElector) -> None:
    may_end = threading.Event()
    elector = make_elector(on_started_leading=lambda: may_end.wait(20))
    lead(elector)

    def child() -> None:
        assert not elector.is_leader()
        assert elector.term is None
        assert not elector.trusted_for()
        assert not elector.takes_part
        assert elector.stop("5s")
        elector.start()  # the parent's callback does not run here
        assert elector.stop("5s")

    in_child(child)
    assert elector.is_leader()
    may_end.set()


# Input


def test_a_leader_only_function_does_nothing_on_a_follower(make_elector: MakeElector) -> None:
    elector = make_elector()

    @leader_only(elector.elector if isinstance(elector, LoopElector) else elector)
    def tidy_up(what: str) -> str:
        """Tidies up."""
        return f"{what} tidied"

    assert tidy_up("room") is None
    assert tidy_up.__doc__ == "Tidies up."
    lead(elector)
    assert tidy_up("room") == "room tidied"
    with pytest.raises(ConfigurationError, match="elector"):
        leader_only(tidy_up)  # type: ignore[arg-type]  # the usual mistake


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lease_duration": "10s", "renew_deadline": "10s"}, r"unsafe: renew_deadline .* lease_duration × 90%"),
        ({"lease_duration": "10s", "renew_deadline": "9s"}, "unsafe: renew_deadline"),
        ({"renew_deadline": "2s", "retry_period": "2s"}, r"retry_period × 1.2 .* must be shorter than renew_deadline"),
        ({"lease_duration": 0}, "lease_duration"),
        ({"takeover": "soon"}, "takeover must be 'expired' or 'observed'"),
        ({"holder": ""}, "holder"),
        ({"name": ""}, "lock name"),
        ({"provider": object()}, "not a lock provider"),
    ],
)
def test_settings_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LeaderElector(**{"provider": InMemoryLockProvider(), "name": "election", **options})


def test_a_provider_from_a_url() -> None:
    assert LeaderElector("memory://", "election").name == "election"
