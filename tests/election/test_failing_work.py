"""``on_started_leading`` raises: a leader without work resigns, so that another node can lead."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shedlock_py import (
    AsyncInMemoryLockProvider,
    AsyncLeaderElector,
    InMemoryLockProvider,
    LeadershipStarted,
    LeadershipStopped,
)
from shedlock_py.election.program import PENDING
from shedlock_py.election.settings import Takeover
from shedlock_py.testing import RecordingListener
from tests.election.conftest import MakeElector
from tests.election.electors import LONG
from tests.election.test_elector import is_released, lead
from tests.election.test_observed import DEADLINE, LEASE, RETRY, Stepped, World
from tests.support.doubles import FaultyProvider
from tests.support.logs import records_of
from tests.support.polling import wait_until
from tests.support.stepped_loop import SteppedLoop, run_stepped

ERROR = ValueError("no route to the feed")


# The program, in virtual time


@pytest.fixture
def world() -> World:
    return World()


def fail(node: Stepped) -> bool:
    """Apply the elector's reaction to an error of ``on_started_leading`` in this term."""
    failed = node.election.fail(node.election.term, ERROR)
    node.wake()
    node.run()
    return failed


@pytest.mark.parametrize("takeover", ["expired", "observed"])
def test_a_node_whose_work_failed_leads_no_more_and_another_node_leads(world: World, takeover: Takeover) -> None:
    one, other = [world.node(name, takeover=takeover) for name in ("one", "other")]
    leader = world.lead_with(one, other)
    follower = other if leader is one else one
    world.pass_time(LEASE, one, other)
    assert leader.election.fail(leader.election.term, ERROR)
    assert not leader.election.is_leader(), "before its program runs"
    leader.wake()
    world.pass_time(2 * RETRY, one, other)
    assert world.leaders() == [follower.holder]
    assert leader.requested.count("release") == 1
    world.pass_time(2 * LEASE, one, other)
    assert world.leaders() == [follower.holder]


def test_a_node_alone_rests_and_leads_again(world: World) -> None:
    node = world.node("alone", takeover="expired")
    world.lead_with(node)
    assert node.election.lease
    former = node.election.lease.fencing_token
    assert fail(node)
    world.pass_time(2 * RETRY - 0.02, node)
    assert world.leaders() == []
    world.pass_time(2 * RETRY, node)
    assert world.leaders() == ["alone"]
    assert node.election.lease
    assert (node.election.lease.fencing_token or 0) > (former or 0)


def test_the_failure_of_a_former_term_does_not_end_the_next_one(world: World) -> None:
    node = world.node("alone", takeover="expired")
    world.lead_with(node)
    former = node.election.term
    node.wake("resign")
    node.run()
    world.pass_time(LEASE, node)
    assert world.leaders() == ["alone"]
    assert node.election.term is not former
    assert not node.election.fail(former, ERROR)
    assert not node.election.fail(None, ERROR)
    world.pass_time(LEASE, node)
    assert world.leaders() == ["alone"]


@pytest.mark.parametrize("intent", ["stop", "resign"])
def test_a_failure_of_a_node_that_gives_up_its_term_anyway_changes_nothing(world: World, intent: Any) -> None:
    node = world.node("alone", takeover="expired")
    world.lead_with(node)
    node.election.intents.add(intent)
    assert not node.election.fail(node.election.term, ERROR)


@pytest.mark.parametrize("reply", ["an error", "none in time"])
def test_i6_a_failure_while_the_store_is_away_leaves_the_lease_to_expire_and_another_node_leads_then(
    world: World, reply: str
) -> None:
    one, other = [world.node(name, takeover="expired") for name in ("one", "other")]
    leader = world.lead_with(one, other)
    follower = other if leader is one else one
    assert leader.election.fail(leader.election.term, ERROR)
    leader.wake()
    assert leader.run_until_request("release")
    if reply == "an error":
        leader.is_cut_off = True
        leader.step()
        leader.is_cut_off = False
    else:
        leader.next = leader.program.send(PENDING)
    world.pass_time(DEADLINE - RETRY, one, other)
    assert world.leaders() == [], "the lease was not released"
    assert leader.election.lease is None
    world.pass_time(LEASE + 2 * RETRY, one, other)
    assert world.leaders() == [follower.holder], "the node that failed rests until the other could acquire the lease"


def test_i3_a_node_alone_leads_again_after_a_failed_release(world: World) -> None:
    node = world.node("alone", takeover="expired")
    world.lead_with(node)
    node.is_cut_off = True
    assert fail(node)
    node.is_cut_off = False
    world.pass_time(LEASE + 4 * RETRY, node)
    assert world.leaders() == ["alone"]


def test_a_term_whose_work_failed_is_a_failed_run_in_the_history(world: World) -> None:
    store = world.store = InMemoryLockProvider(clock=world.clock, history=5)
    node = world.node("alone", takeover="expired")
    world.lead_with(node)
    assert fail(node)
    [run] = store.runs("election")
    assert (run.outcome, run.error) == ("failed", "ValueError: no route to the feed")


# Both electors


def errors_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return records_of(caplog, level=logging.ERROR)


def test_an_exception_of_the_work_resigns_once_and_one_error_says_so(
    make_elector: MakeElector, store: FaultyProvider, listener: RecordingListener, caplog: pytest.LogCaptureFixture
) -> None:
    """Another node leads; this node stays a candidate."""
    called: list[str] = []

    def work() -> None:
        called.append("started")
        raise ERROR

    broken = make_elector("broken", on_started_leading=work, on_stopped_leading=lambda: called.append("stopped"))
    healthy = make_elector("healthy")
    broken.start()
    wait_until(lambda: listener.of(LeadershipStopped), what="the node resigns")
    healthy.start()
    assert not broken.is_leader()
    assert healthy.wait_until_leader("20s")
    assert {event.reason for event in listener.of(LeadershipStopped) if event.holder == "broken"} == {"resigned"}
    terms = sum(event.holder == "broken" for event in listener.of(LeadershipStarted))
    assert called == ["started", "stopped"] * terms
    errors = errors_of(caplog)
    assert len(errors) == terms, "one for each term"
    assert "election 'election': on_started_leading" in errors[0].getMessage()
    assert "this node resigns, so that another can lead" in errors[0].getMessage()
    assert errors[0].exc_info is not None
    assert errors[0].exc_info[1] is ERROR
    assert broken.takes_part
    assert broken.stop("10s")


@pytest.mark.parametrize("kind", ["threads"], indirect=True)
def test_other_work_of_that_term_returns_before_the_release(make_elector: MakeElector, store: FaultyProvider) -> None:
    """It sees at once that this node does not lead, and may stop slowly."""
    may_end, seen = threading.Event(), list[bool]()

    def fail() -> None:
        raise ERROR

    def work() -> None:
        wait_until(lambda: not elector.is_leader())
        seen.append(is_released(store))
        may_end.wait(20)

    elector: Any = make_elector(on_started_leading=work, **LONG)
    elector.add_callbacks(on_started_leading=fail)
    elector.start()
    wait_until(lambda: seen)
    assert seen == [False]
    assert store.calls["release"] == 0
    may_end.set()
    wait_until(lambda: store.calls["release"] == 1)


def test_who_waits_in_a_callback_while_the_leader_resigns_because_of_a_failure(make_elector: MakeElector) -> None:
    """A callback must not wait for the lease's release, which waits for the callback."""
    results: list[bool] = []

    def fail() -> None:
        raise ERROR

    elector: Any = make_elector(
        on_started_leading=fail, on_stopped_leading=lambda: results.append(elector.wait_until_leader()), **LONG
    )
    elector.start()
    wait_until(lambda: results)
    assert results[0] is False


# Threads


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", ["threads"], indirect=True)
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_whatever_the_work_raises_the_node_resigns(
    make_elector: MakeElector,
    listener: RecordingListener,
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def work() -> None:
        raise error("of a callback")

    elector = make_elector(on_started_leading=work, **{**LONG, "retry_period": "10m"})
    elector.start()
    wait_until(lambda: listener.of(LeadershipStopped))
    assert [event.reason for event in listener.of(LeadershipStopped)] == ["resigned"]
    assert [str(record.exc_info[1]) for record in errors_of(caplog) if record.exc_info] == ["of a callback"]


@pytest.mark.parametrize("kind", ["threads"], indirect=True)
def test_a_function_that_returns_a_coroutine_has_not_worked(
    make_elector: MakeElector, listener: RecordingListener, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        raise NotImplementedError

    elector = make_elector(on_started_leading=lambda: work(), **{**LONG, "retry_period": "10m"})
    elector.start()
    wait_until(lambda: listener.of(LeadershipStopped))
    [error] = errors_of(caplog)
    assert error.exc_info
    assert "AsyncLeaderElector can" in str(error.exc_info[1])


@pytest.mark.parametrize("kind", ["threads"], indirect=True)
def test_other_callbacks_that_raise_end_no_leadership(
    make_elector: MakeElector, store: FaultyProvider, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ERROR

    elector = make_elector(on_new_leader=fail, **LONG)
    elector.add_callbacks(on_renewed=fail)
    term = lead(elector)
    wait_until(lambda: len(errors_of(caplog)) > 2 and store.calls["extend"] > 2)
    assert elector.term == term


# An event loop, in virtual time


class Campaign:
    """A node on asyncio with the test's work, in its own election."""

    def __init__(self, loop: SteppedLoop, **callbacks: Any) -> None:
        self.stopped = 0
        provider = AsyncInMemoryLockProvider(clock=loop.clock)
        self.elector = AsyncLeaderElector(provider, "election", on_stopped_leading=self._count, **callbacks)

    def _count(self) -> None:
        self.stopped += 1


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[SteppedLoop], Any]], Any]:
    return lambda main: run_stepped(main, monkeypatch)


Run = Callable[[Callable[[SteppedLoop], Any]], Any]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
@pytest.mark.parametrize("way", ["function", "coroutine function", "later"])
def test_on_an_event_loop_a_node_whose_work_raises_resigns_and_rests(
    run: Run, error: type[BaseException], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error("no route")

    async def fail_at_once() -> None:
        fail()

    async def fail_later() -> None:
        await asyncio.sleep(30)  # seconds, of virtual time
        failing = asyncio.ensure_future(fail_at_once())
        await failing

    work = {"function": fail, "coroutine function": fail_at_once, "later": fail_later}[way]

    async def main(loop: SteppedLoop) -> None:
        campaign = Campaign(loop, on_started_leading=work)
        elector = campaign.elector
        await elector.start()
        while not campaign.stopped:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.1)
        assert not elector.is_leader()
        assert await elector.leader() is None, "released"
        [message] = [record.getMessage() for record in errors_of(caplog)]
        assert "on_started_leading" in message
        assert "resigns" in message
        assert elector.takes_part
        await asyncio.sleep(3.5)
        assert await elector.leader() is None, "it rests for two retry periods of 2 s"
        await asyncio.sleep(3)
        assert elector.is_leader() or campaign.stopped > 1, "it leads again"
        await elector.stop("1m")

    run(main)


def test_work_that_somebody_cancels_is_no_more_so_the_node_resigns(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    tasks: list[Any] = []

    async def work() -> None:
        tasks.append(asyncio.current_task())
        await asyncio.Event().wait()

    async def main(loop: SteppedLoop) -> None:
        campaign = Campaign(loop, on_started_leading=work)
        async with campaign.elector as elector:
            assert await elector.wait_until_leader("1m")
            await asyncio.sleep(60)
            assert elector.is_leader()
            tasks[0].cancel()
            await asyncio.sleep(0.1)
            assert not elector.is_leader()
            assert campaign.stopped == 1
            [message] = [record.getMessage() for record in errors_of(caplog)]
            assert "resigns" in message
            tasks[-1].cancel()

    run(main)


def test_work_that_on_stopped_leading_cancels_is_no_error(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    tasks: list[Any] = []

    async def work() -> None:
        tasks.append(asyncio.current_task())
        await asyncio.Event().wait()

    async def main(loop: SteppedLoop) -> None:
        provider = AsyncInMemoryLockProvider(clock=loop.clock)
        elector = AsyncLeaderElector(
            provider, "election", on_started_leading=work, on_stopped_leading=lambda: tasks.pop().cancel()
        )
        await elector.start()
        assert await elector.wait_until_leader("1m")
        elector.resign()
        await asyncio.sleep(0.1)
        assert await elector.leader() is None, "released, because the work has ended"
        assert await elector.wait_until_leader("1m")
        await elector.stop()
        assert await elector.leader() is None

    run(main)
    assert errors_of(caplog) == []
