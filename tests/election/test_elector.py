"""One elector, and several in one process."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta

import pytest

from shedlock_py import (
    ConfigurationError,
    InMemoryLockProvider,
    LeaderChanged,
    LeaderElector,
    LeadershipStarted,
    LeadershipStopped,
    Lease,
    LockRequest,
    ProviderFailed,
    leader_only,
)
from shedlock_py.testing import RecordingListener
from tests.election.conftest import DURATIONS, MakeElector
from tests.support.doubles import FaultyProvider
from tests.support.polling import wait_until


def test_the_only_node_leads(make_elector: MakeElector, store: FaultyProvider, heard: RecordingListener) -> None:
    elector = make_elector()
    assert not elector.is_leader()
    assert elector.term is None
    assert elector.leader() is None
    with elector:
        assert elector.wait_until_leader("10s")
        term = elector.term
        record = elector.leader()
        assert record is not None
        assert (record.holder, record.fencing_token) == ("me", term)
        until = time.monotonic() + 2
        wait_until(lambda: time.monotonic() > until or not elector.is_leader())
        assert elector.is_leader()
        assert elector.term == term
    assert not elector.is_leader()
    assert elector.leader() is None
    assert [type(event) for event in heard.events] == [LeadershipStarted, LeaderChanged, LeadershipStopped]
    assert heard.of(LeadershipStarted) == [LeadershipStarted("election", "me", term)]
    assert heard.of(LeadershipStopped) == [LeadershipStopped("election", "me", term, "resigned")]


def test_a_follower_follows(make_elector: MakeElector, heard: RecordingListener) -> None:
    first, second = make_elector("first"), make_elector("second")
    first.start()
    assert first.wait_until_leader("10s")
    second.start()
    assert not second.wait_until_leader("1s")
    leader = second.leader()
    assert leader is not None
    assert leader.holder == "first"
    term = first.term
    assert first.stop("10s")
    assert second.wait_until_leader("10s")
    assert (second.term or 0) > (term or 0)
    assert [event.holder for event in heard.of(LeaderChanged)] == ["first", "first", "second"]  # each node says it


def test_i6_a_leader_without_a_store_stops_before_its_lease_ends(
    make_elector: MakeElector, store: FaultyProvider, heard: RecordingListener
) -> None:
    elector = make_elector()
    elector.start()
    assert elector.wait_until_leader("10s")
    for trouble in (store.fail, store.hang):
        trouble()
        while True:
            record = store.inner.record("election")
            assert record is not None
            was_leader = elector.is_leader()
            assert record.is_held or not was_leader  # in this order: the leader stops first
            if not was_leader:
                break
        wait_until(lambda: len(heard.of(LeadershipStopped)) == 1)
        assert [event.reason for event in heard.of(LeadershipStopped)] == ["unreachable"]
        heard.events.clear()
        store.recover()
        assert elector.wait_until_leader("10s")


def test_one_failure_or_several_do_not_end_a_leadership(
    make_elector: MakeElector, store: FaultyProvider, heard: RecordingListener
) -> None:
    elector = make_elector(lease_duration="6s", renew_deadline="4s", retry_period="50ms")
    elector.start()
    assert elector.wait_until_leader("10s")
    term = elector.term
    store.fail()
    wait_until(lambda: len(heard.of(ProviderFailed)) >= 5)
    store.recover()
    before = store.calls["extend"]
    wait_until(lambda: store.calls["extend"] > before + 2)
    assert elector.term == term
    assert {event.operation for event in heard.of(ProviderFailed)} == {"extend"}


def test_take_over_is_exclusive(make_elector: MakeElector, store: FaultyProvider, heard: RecordingListener) -> None:
    """Whoever takes over leads only when the former leader, even cut off from the store, cannot believe any more."""
    view = FaultyProvider(store.inner)
    former = LeaderElector(
        view, "election", holder="former",
        lease_duration="900ms", renew_deadline="600ms", retry_period="100ms",
    )  # fmt: skip
    taker = make_elector("taker", lease_duration="900ms", renew_deadline="600ms")
    former.start()
    assert former.wait_until_leader("10s")
    term = former.term
    taker.start()
    view.fail()  # it cannot learn of it
    taking = threading.Thread(target=taker.take_over, args=("10s",))
    taking.start()
    while not taker.is_leader():
        assert not (taker.is_leader() and former.is_leader())
    assert not former.is_leader()
    assert (taker.term or 0) > (term or 0)
    taking.join()
    view.recover()
    former.stop("10s")


def test_take_over_of_a_leader_that_sees_it(make_elector: MakeElector, heard: RecordingListener) -> None:
    former, taker = make_elector("former"), make_elector("taker")
    former.start()
    assert former.wait_until_leader("10s")
    taker.start()
    assert taker.take_over("10s")
    assert taker.is_leader()
    assert not former.is_leader()
    wait_until(lambda: bool(heard.of(LeadershipStopped)))
    assert [(event.holder, event.reason) for event in heard.of(LeadershipStopped)] == [("former", "revoked")]
    assert taker.take_over("10s")  # it leads already


def test_demote_with_a_cooldown(make_elector: MakeElector, heard: RecordingListener) -> None:
    first, second = make_elector("first"), make_elector("second")
    assert second.demote() is False
    first.start()
    assert first.wait_until_leader("10s")
    second.start()
    assert second.demote(cooldown="1h")
    assert second.leader() is None
    wait_until(second.is_leader)
    assert not first.is_leader()
    assert second.stop("10s")
    assert not first.wait_until_leader("1s")  # it rests


def test_a_demoted_node_alone_leads_again(make_elector: MakeElector) -> None:
    elector = make_elector()
    elector.start()
    assert elector.wait_until_leader("10s")
    term = elector.term
    assert elector.demote(cooldown="500ms")
    wait_until(lambda: not elector.is_leader())
    assert elector.wait_until_leader("10s")
    assert elector.term != term


def test_resign_lets_another_lead(make_elector: MakeElector) -> None:
    first, second = make_elector("first"), make_elector("second")
    first.start()
    assert first.wait_until_leader("10s")
    second.start()
    first.resign()
    assert second.wait_until_leader("10s")
    assert not first.is_leader()
    second.resign()
    assert first.wait_until_leader("10s")


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
    elector.start()
    assert elector.wait_until_leader("10s")
    wait_until(lambda: len(steps) == 2)
    assert elector.stop("300ms") is False  # the work goes on …
    assert not elector.is_leader()
    until = time.monotonic() + 1.5
    while time.monotonic() < until:  # … and nobody else gets the lock, for more than a lease
        assert store.acquire(LockRequest("election", "1m")) is None
        time.sleep(0.02)
    may_end.set()
    assert elector.stop("10s") is True
    assert store.acquire(LockRequest("election", "1m")) is not None
    assert sorted(steps[:2]) == ["new leader me", "started"]
    assert steps[2:] == ["stopped", "work ended"]


def test_a_callback_that_raises_or_hangs_delays_nothing(make_elector: MakeElector) -> None:
    may_end = threading.Event()

    def fail(*_: object) -> None:
        raise RuntimeError("of a callback")

    elector = make_elector(on_started_leading=lambda: may_end.wait(20), on_new_leader=fail)
    elector.start()
    assert elector.wait_until_leader("10s")
    term = elector.term
    until = time.monotonic() + 1.5
    wait_until(lambda: time.monotonic() > until or not elector.is_leader())
    assert elector.term == term
    may_end.set()


def test_followers_back_off_while_the_store_is_away(make_elector: MakeElector, store: FaultyProvider) -> None:
    store.fail()
    electors = [make_elector(f"node-{number}") for number in range(5)]
    for elector in electors:
        elector.start()
    wait_until(lambda: store.calls["record"] > 20)
    store.calls.clear()
    until = time.monotonic() + 3
    wait_until(lambda: time.monotonic() > until)
    assert store.calls["record"] <= 5 * 3 / 0.3 + 5  # half of the cap, a lease of 0.6 s, at the least
    store.recover()
    wait_until(lambda: any(elector.is_leader() for elector in electors))
    assert sum(elector.is_leader() for elector in electors) == 1


def test_what_an_idle_election_costs(make_elector: MakeElector, store: FaultyProvider) -> None:
    """At the default durations, divided by twenty: a leader renews, and a follower looks, once a retry period."""
    durations = {"lease_duration": "750ms", "renew_deadline": "500ms", "retry_period": "100ms"}
    electors = [make_elector(f"node-{number}", **durations) for number in range(5)]
    for elector in electors:
        elector.start()
    wait_until(lambda: any(elector.is_leader() for elector in electors))
    store.calls.clear()
    until = time.monotonic() + 3  # a minute of the defaults
    wait_until(lambda: time.monotonic() > until)
    asked = dict(store.calls)
    assert 20 <= asked.pop("extend") <= 31
    assert 4 * 17 <= asked.pop("record") <= 4 * 31
    assert asked == {}


def test_observed_takeover_when_the_stores_clock_jumps_forward(
    make_elector: MakeElector, store: FaultyProvider
) -> None:
    """The lease looks over, but its leader believes: nobody else leads before it has noticed."""
    leader, follower = (
        make_elector(holder, takeover="observed", retry_period="250ms", renew_deadline="500ms")
        for holder in ("leader", "follower")
    )
    leader.start()
    assert leader.wait_until_leader("10s")
    follower.start()
    wait_until(lambda: store.calls["record"] > 5)
    term = leader.term
    store.inner.programs.store.epoch += timedelta(hours=1)
    while not follower.is_leader() and leader.term in (None, term):
        assert not (follower.is_leader() and leader.is_leader())
    assert not (follower.is_leader() and leader.is_leader())


def test_observed_takeover_follows_a_dead_leader_also_when_the_clock_was_set_back(
    make_elector: MakeElector, store: FaultyProvider
) -> None:
    view = FaultyProvider(store.inner)
    dead = LeaderElector(
        view, "election", holder="dead", lease_duration="600ms", renew_deadline="400ms", retry_period="100ms"
    )
    dead.start()
    assert dead.wait_until_leader("10s")
    follower = make_elector("follower", takeover="observed")
    follower.start()
    wait_until(lambda: store.calls["record"] > 3)
    view.fail()
    store.inner.programs.store.epoch -= timedelta(hours=1)
    record = store.record("election")
    assert record is not None
    assert record.remaining > timedelta(minutes=50)
    while not follower.is_leader():
        assert not (follower.is_leader() and dead.is_leader())
    assert not dead.is_leader()
    dead.stop("10s")


def test_observed_takeover_is_soon_after_a_clean_stop(make_elector: MakeElector) -> None:
    options = {"takeover": "observed", "lease_duration": "30s", "renew_deadline": "1s", "retry_period": "100ms"}
    first, second = make_elector("first", **options), make_elector("second", **options)
    first.start()
    assert first.wait_until_leader("10s")
    second.start()
    wait_until(lambda: second.leader() is not None)
    until = time.monotonic() + 0.5
    wait_until(lambda: time.monotonic() > until)  # it must have seen the lease before
    assert first.stop("10s")
    assert second.wait_until_leader("10s")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_lead(make_elector: MakeElector) -> None:
    elector = make_elector()
    elector.start()
    assert elector.wait_until_leader("10s")
    child = os.fork()
    if not child:
        os._exit(int(elector.is_leader() or elector.term is not None or not elector.stop("5s")))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert elector.is_leader()


def test_start_twice_and_again(make_elector: MakeElector) -> None:
    elector = make_elector()
    elector.start()
    with pytest.raises(RuntimeError, match="started already"):
        elector.start()
    assert elector.stop("10s")
    assert elector.stop("10s")
    elector.start()
    assert elector.wait_until_leader("10s")


def test_who_waits_before_it_is_started(make_elector: MakeElector) -> None:
    elector = make_elector()
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(elector.wait_until_leader("20s")), daemon=True)
    thread.start()
    wait_until(lambda: elector._changed._waiters, what="waiting")  # type: ignore[attr-defined]  # of threading
    elector.start()
    wait_until(lambda: waited == [True])


def test_a_campaign_that_fails_ends_the_leadership(
    make_elector: MakeElector, heard: RecordingListener, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("nobody expects it")

    elector = make_elector(lease_duration="1h", renew_deadline="50m")
    elector._callbacks.call_renewed = fail  # type: ignore[method-assign]  # fails inside the campaign
    elector.start()
    assert elector.wait_until_leader("10s")
    wait_until(lambda: heard.of(LeadershipStopped))
    assert not elector.is_leader()
    assert [event.reason for event in heard.of(LeadershipStopped)] == ["unreachable"]
    assert elector.stop("10s")
    assert "nobody expects it" in caplog.text


def test_leader_only(make_elector: MakeElector) -> None:
    elector = make_elector()

    @leader_only(elector)
    def tidy_up(what: str) -> str:
        """Tidies up."""
        return f"{what} tidied"

    assert tidy_up("room") is None
    assert tidy_up.__doc__ == "Tidies up."
    elector.start()
    assert elector.wait_until_leader("10s")
    assert tidy_up("room") == "room tidied"
    with pytest.raises(ConfigurationError, match="elector"):
        leader_only(tidy_up)  # type: ignore[arg-type]  # the usual mistake


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        ({"lease_duration": "10s", "renew_deadline": "10s"}, r"unsafe: renew_deadline .* lease_duration × 90%"),
        ({"lease_duration": "10s", "renew_deadline": "9s"}, "unsafe: renew_deadline"),
        ({"renew_deadline": "2s", "retry_period": "2s"}, r"retry_period × 1.2 .* must be shorter than renew_deadline"),
        ({"lease_duration": 0}, "lease_duration"),
        ({"takeover": "soon"}, "takeover must be 'expired' or 'observed'"),
        ({"holder": ""}, "holder"),
    ],
)
def test_settings_that_cannot_work(durations: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LeaderElector(InMemoryLockProvider(), "election", **durations)  # type: ignore[arg-type]  # wrong on purpose


def test_a_provider_from_a_url_and_wrong_ones() -> None:
    assert LeaderElector("memory://", "election").name == "election"
    with pytest.raises(ConfigurationError):
        LeaderElector(object(), "election")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigurationError, match="lock name"):
        LeaderElector(InMemoryLockProvider(), "")


def test_two_that_take_over_at_once_end_with_one_leader(make_elector: MakeElector) -> None:
    former, one, other = (make_elector(holder) for holder in ("former", "one", "other"))
    former.start()
    assert former.wait_until_leader("10s")
    one.start()
    other.start()
    outcomes: dict[str, bool] = {}

    def take_over(elector: LeaderElector) -> None:
        outcomes[elector.holder] = elector.take_over("10s")

    threads = [threading.Thread(target=take_over, args=(elector,)) for elector in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes.values()) == [False, True]
    leader = next(elector for elector in (one, other) if outcomes[elector.holder])
    until = time.monotonic() + 1
    while time.monotonic() < until:
        assert [elector.holder for elector in (former, one, other) if elector.is_leader()] == [leader.holder]
        time.sleep(0.01)


def test_i1_whoever_leads_between_the_look_and_the_take_over_is_waited_for(store: FaultyProvider) -> None:
    rival = LeaderElector(FaultyProvider(store.inner), "election", holder="rival", **DURATIONS)  # type: ignore[arg-type]  # durations

    class Late(FaultyProvider):
        """By the time it claims, another node leads."""

        def acquire(self, request: LockRequest) -> Lease | None:
            rival.start()
            assert rival.wait_until_leader("10s")
            lease: Lease | None = super().acquire(request)
            return lease

    elector = LeaderElector(Late(store.inner), "election", holder="me", **DURATIONS)  # type: ignore[arg-type]  # durations
    elector.start()
    elector._request("take_over")
    while not elector.is_leader():
        assert not (rival.is_leader() and elector.is_leader())
    assert not rival.is_leader()
    elector.stop("10s")
    rival.stop("10s")


def test_a_demotion_tells_exactly_the_one_who_led(make_elector: MakeElector) -> None:
    first, tenth = make_elector("node-1"), make_elector("node-10")
    first.start()
    assert first.wait_until_leader("10s")
    tenth.start()
    assert tenth.demote("1h")
    assert tenth.wait_until_leader("10s")
    assert not first.is_leader()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_may_start_an_elector_of_its_own(make_elector: MakeElector) -> None:
    may_end = threading.Event()
    elector = make_elector(on_started_leading=lambda: may_end.wait(20))
    elector.start()
    assert elector.wait_until_leader("10s")
    child = os.fork()
    if not child:
        elector.start()  # the callback of the parent does not run here
        os._exit(0 if elector.stop("5s") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    may_end.set()
