"""Elections in virtual time. With ``takeover="observed"`` one node leads, although the store's clock jumps.

The clock jumps between any two steps of a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from random import random
from typing import Any

import pytest

from shedlock_py import InMemoryLockProvider
from shedlock_py.election.demotion import Demotion
from shedlock_py.election.program import PENDING, Do, Election, Wait
from shedlock_py.election.settings import JITTER, ElectionSettings, Takeover
from shedlock_py.errors import ProviderUnreachable
from shedlock_py.testing import FakeClock

LEASE, DEADLINE, RETRY = 3.0, 2.0, 0.5
HOUR = 3600.0


class World:
    """One clock for all nodes, and a store with a clock that can jump."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.jumped = 0.0
        self.store = InMemoryLockProvider(clock=lambda: self.clock() + self.jumped)
        self.nodes: list[Stepped] = []

    def node(
        self,
        holder: str,
        lease: float = LEASE,
        deadline: float = DEADLINE,
        retry: float = RETRY,
        takeover: Takeover = "observed",
    ) -> Stepped:
        node = Stepped(self, ElectionSettings.parse("election", lease, deadline, retry, holder, takeover))
        self.nodes.append(node)
        return node

    def jump(self, seconds: float) -> None:
        self.jumped += seconds

    def leaders(self) -> list[str | None]:
        found = [node.holder for node in self.nodes if node.election.is_leader()]
        assert len(found) < 2, found
        return found

    def pass_time(self, seconds: float, *nodes: Stepped) -> None:
        """Run these nodes. Other nodes stand still at their current step."""
        for _ in range(round(seconds / 0.01)):
            self.clock.advance(0.01)
            for node in nodes:
                node.run()
                self.leaders()

    def led_by(self, holder: str, *followers: str, seconds: float = LEASE) -> list[Stepped]:
        """Return nodes: the first leads, and the followers have observed it for ``seconds``."""
        nodes = [self.node(name) for name in (holder, *followers)]
        self.lead_with(nodes[0])
        self.pass_time(seconds, *nodes)
        return nodes

    def lead_next(self, node: Stepped) -> None:
        """Let this node read a free lease as soon as it may, and lead; other nodes stand still."""
        node.wake()
        until_request("acquire", node, self)
        node.run()
        assert self.leaders() == [node.holder]

    def lead_alone(self, node: Stepped) -> None:
        """Let this node lead within a lease; other nodes stand still."""
        self.pass_time(LEASE, node)
        assert self.leaders() == [node.holder]

    def lead_with(self, *nodes: Stepped) -> Stepped:
        """Let time pass for these nodes until one node leads and all have noticed."""
        for _ in range(10):
            self.pass_time(LEASE / 2, *nodes)
            if self.leaders():
                self.pass_time(2 * RETRY, *nodes)
                return next(node for node in nodes if node.holder in self.leaders())
        raise AssertionError("no node leads")


class Stepped:
    """A node that stops before each request to the store."""

    def __init__(self, world: World, settings: ElectionSettings) -> None:
        self.holder = settings.holder
        self.is_cut_off = False
        self.requested: list[str] = []
        self._world = world
        nothing = lambda *_: None  # noqa: E731 (callbacks that do nothing)
        self.election = Election(settings, world.clock, random, nothing, nothing, lambda: False)
        self.program = self.election.run()
        self.next: Any = next(self.program)

    def run(self) -> None:
        """Do everything that is due now."""
        while isinstance(self.next, Do) or self.next.until <= self._world.clock():
            self.step()

    def run_until_request(self, operation: str) -> bool:
        """Do everything that is due, until the node is about to request ``operation``."""
        while isinstance(self.next, Do) or self.next.until <= self._world.clock():
            if isinstance(self.next, Do) and self.next.operation == operation:
                return True
            self.step()
        return False

    def step(self) -> None:
        command, reply = self.next, None
        if isinstance(command, Do):
            self.requested.append(command.operation)
            if self.is_cut_off:
                self.next = self.program.throw(
                    ProviderUnreachable("cut off", operation=command.operation, lock_name="election")
                )
                return
            reply = getattr(self._world.store, command.operation)(*command.args)
        self.next = self.program.send(reply)

    def wake(self, intent: Any = None) -> None:
        """End its wait, for an intent or because a callback has returned."""
        assert isinstance(self.next, Wait)
        if intent:
            self.election.intents.add(intent)
        self.step()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.leaders()


def until_request(operation: str, node: Stepped, world: World) -> None:
    """Let time pass for this node only."""
    for _ in range(2000):
        if node.run_until_request(operation):
            return
        world.clock.advance(0.01)
    raise AssertionError(f"{node.holder} never requested {operation}: {node.requested[-5:]}")


@pytest.mark.parametrize("size", [LEASE + 0.2, 60.0, HOUR])
@pytest.mark.parametrize("former", ["died", "released", "none"])
def test_i6_an_acquisition_that_is_late_makes_no_second_leader(world: World, size: float, former: str) -> None:
    """It was sent when no node led. Before it arrives, another node gets the lease, and the store's clock is set."""
    if former == "none":
        one, late = world.node("one"), world.node("late")
    else:
        leader, one, late = world.led_by("leader", "one", "late", seconds=LEASE)
        if former == "released":
            leader.wake("resign")
            leader.run()
    until_request("acquire", late, world)
    if former == "none":
        one.run()
    else:
        world.lead_next(one)
    assert one.election.lease is not None
    world.jump(size)
    late.step()  # by the store's clock, the other node's lease is over
    assert late.election.lease is not None
    world.lead_alone(late)
    world.pass_time(LEASE, one, late)
    assert world.leaders() == ["late"]


def test_i6_a_take_over_that_is_late_makes_no_second_leader(world: World) -> None:
    """The clock was set back, so a dead leader's lease would last for an hour. Two nodes take it by force."""
    _, one, late = world.led_by("dead", "one", "late", seconds=2 * RETRY)
    world.jump(-HOUR)
    while not (late.requested[-1] == "record" and late.election.observation.is_overdue()):  # it is about to take over
        if isinstance(late.next, Do) or late.next.until <= world.clock():
            late.step()
        else:
            world.clock.advance(0.01)
    assert world.lead_with(one) is one
    world.jump(HOUR)
    late.run()
    world.pass_time(LEASE, late)
    world.pass_time(2 * LEASE, one, late)
    assert len(world.leaders()) == 1


def test_i6_a_node_reads_again_before_it_takes_over(world: World) -> None:
    """It last read a lease that had not been renewed for a long time. Since then another node leads."""
    _, one, late = world.led_by("dead", "one", "late", seconds=2 * RETRY)
    until_request("acquire", late, world)
    late.is_cut_off = True
    late.run()
    late.is_cut_off = False
    world.lead_next(one)
    world.jump(HOUR)
    late.wake("take_over")
    late.run()
    world.lead_alone(late)


def test_i6_a_jump_back_and_forth_while_an_acquisition_is_late(world: World) -> None:
    """Hardly any time has passed by the store's clock, but enough by the nodes' clocks to renew a lease and lose it."""
    _, one, late = world.led_by("dead", "one", "late", seconds=2 * RETRY)
    world.jump(60.0)  # so that the old lease is over even after the clock is set back
    until_request("acquire", late, world)
    world.lead_next(one)
    world.jump(-30.0)
    world.pass_time(RETRY + 0.1, one)  # it has renewed
    world.jump(30.0)
    late.step()
    assert late.election.lease is not None
    world.lead_alone(late)


def test_i6_a_node_that_was_replaced_at_once_does_not_lead(world: World) -> None:
    one, late = world.led_by("one", "late", seconds=2 * RETRY)
    until_request("acquire", late, world)
    late.step()
    one.is_cut_off = False
    one.run()
    one.wake("take_over")
    one.run()
    late.step()
    assert world.leaders() == []
    assert late.election.lease is not None


@pytest.mark.parametrize("takeover", ["expired", "observed"])
def test_i6_a_node_that_resigns_before_it_leads_releases_nothing(world: World, takeover: Takeover) -> None:
    """It waits until the former leader no longer trusts its lease, and so must the next leader.

    TLC found it: the mutant ``expired_MayRelease_frees_while_it_waits`` of docs/formal.
    """
    leader, second, third = (world.node(name, takeover=takeover) for name in ("leader", "second", "third"))
    world.lead_with(leader)
    world.pass_time(LEASE, leader, second, third)
    second.wake("take_over")
    second.run()
    assert world.leaders() == ["leader"], "it stands still, and trusts its lease"
    second.wake("resign")
    second.run()
    world.pass_time(RETRY * JITTER, third)
    assert world.leaders() == ["leader"]
    world.pass_time(3 * LEASE, third)
    assert world.leaders() == ["third"]


def test_i6_an_acquire_that_was_late_and_is_undone_is_no_release(world: World) -> None:
    """Its node gave up long ago and never led, so the replaced leader may still trust its lease."""
    _, leader, late = world.led_by("dead", "leader", "late", seconds=2 * RETRY)
    third = world.node("third")
    until_request("acquire", late, world)
    acquire = late.next
    late.next = late.program.throw(ProviderUnreachable("no reply", operation="acquire", lock_name="election"))
    world.pass_time(2 * LEASE, leader, third)
    assert world.leaders() == ["leader"]
    world.jump(HOUR)
    abandoned = world.store.acquire(*acquire.args)
    assert abandoned is not None
    until_request("record", third, world)
    third.run()
    world.store.undo(abandoned)
    world.pass_time(3 * LEASE, third)
    assert world.leaders() == ["third"]


@pytest.mark.parametrize("size", [LEASE - RETRY, LEASE, LEASE + 0.3, HOUR])
@pytest.mark.parametrize("reads", [True, False], ids=["reads in between", "does not"])
def test_i6_a_lease_that_a_jump_ended_was_not_released(world: World, size: float, reads: bool) -> None:
    """The clock was set back before, so the lease ends earlier than before, like a released lease."""
    world.jump(HOUR)
    leader, follower = world.led_by("leader", "follower")
    until_request("extend", leader, world)
    leader.run()
    world.jump(-60)
    if reads:
        follower.wake()
        follower.run()
    world.pass_time(RETRY + 0.01, leader)
    assert leader.requested[-1] == "extend"
    world.jump(size)
    follower.wake()
    world.pass_time(2 * LEASE, follower)
    assert world.leaders() == ["follower"]


def test_i6_a_record_that_was_deleted(world: World) -> None:
    leader, follower = world.led_by("leader", "follower")
    world.jump(HOUR)
    assert world.store.prune(timedelta(minutes=30)) == 1
    world.pass_time(2 * RETRY, follower)
    assert world.leaders() == ["leader"]
    world.pass_time(2 * LEASE, leader, follower)
    assert len(world.leaders()) == 1


def test_a_dead_leader_is_followed_although_the_clock_was_set_back(world: World) -> None:
    """Its lease would last for an hour. The new leader takes it by force, and waits for another lease."""
    _, follower = world.led_by("leader", "follower")
    world.jump(-HOUR)
    world.pass_time(1.6 * LEASE, follower)
    assert world.leaders() == []
    world.pass_time(0.4 * LEASE + 2 * 1.2 * RETRY, follower)
    assert world.leaders() == ["follower"]


def test_a_clean_stop_is_followed_at_once(world: World) -> None:
    leader, follower = world.led_by("leader", "follower")
    leader.wake("resign")
    world.pass_time(1.2 * RETRY + 0.02, leader, follower)
    assert world.leaders() == ["follower"]


@pytest.mark.parametrize("jump", [0.0, 60.0, HOUR])
def test_a_dead_leader_is_followed_soon(world: World, jump: float) -> None:
    """After a lease and two reads, the previous leader is certain, so the node need not wait longer."""
    _, follower = world.led_by("leader", "follower")
    world.jump(jump)
    world.pass_time(LEASE + 2 * 1.2 * RETRY + 0.02, follower)
    assert world.leaders() == ["follower"]


@pytest.mark.parametrize(("lease", "deadline", "retry"), [(3.0, 2.0, 0.5), (15.0, 10.0, 6.0), (60.0, 5.0, 2.0)])
@pytest.mark.parametrize("reply", ["failed", "pending"])
def test_a_follower_in_doubt_waits(world: World, lease: float, deadline: float, retry: float, reply: str) -> None:
    """It has the lease, but cannot read the replaced lease: it waits until a former leader no longer trusts it."""
    world.node("leader", lease, deadline, retry).run()
    follower = world.node("follower", lease, deadline, retry)
    follower.run()
    world.store.force_release("election")
    until_request("acquire", follower, world)
    follower.step()
    assert follower.election.lease is not None
    read = follower.next
    assert isinstance(read, Do)
    if reply == "failed":
        follower.is_cut_off = True
        follower.step()
        follower.is_cut_off = False
    else:
        assert read.seconds is not None
        world.clock.advance(read.seconds)
        follower.next = follower.program.send(PENDING)
    assert isinstance(follower.next, Wait)
    assert follower.next.until <= world.clock() + retry, "it renews as usual"
    world.pass_time(deadline - 0.1 - (read.seconds or 0) * (reply == "pending"), follower)
    assert world.leaders() == []
    world.pass_time(deadline * 0.01 + 0.12 + retry, follower)
    assert world.leaders() == ["follower"]


def test_i6_a_clock_that_is_set_back_and_forth(world: World) -> None:
    """Both nodes see the dead leader's lease end. Between the two jumps, one node gets the lease."""
    leader, one, late = world.node("leader"), world.node("one"), world.node("late")
    world.lead_with(leader)
    world.jump(60)
    world.pass_time(LEASE, one, late)
    until_request("acquire", one, world)
    until_request("acquire", late, world)
    world.jump(-30)
    one.run()
    assert one.election.lease is not None
    world.jump(30)
    late.run()
    world.lead_alone(late)


@pytest.mark.parametrize("operation", ["acquire", "extend"])
def test_i6_a_leader_trusts_its_lease_from_before_the_request(world: World, operation: str) -> None:
    """The reply takes a second, and the store may have granted the lease at the start of that second."""
    node = world.node("slow", takeover="expired")
    if operation == "extend":
        world.lead_with(node)
    until_request(operation, node, world)
    sent_at, command = world.clock(), node.next
    reply = getattr(world.store, operation)(*command.args)
    world.clock.advance(DEADLINE / 2)
    node.next = node.program.send(reply)
    world.clock.advance(DEADLINE / 2 - 0.01)
    assert world.leaders() == ["slow"]
    world.clock.advance(sent_at + DEADLINE + 0.01 - world.clock())
    assert world.leaders() == []


def test_i6_no_renewal_is_waited_for_when_the_trust_has_ended(world: World) -> None:
    """Its callbacks are called then, and not a sixth of the lease later, when another node may lead."""
    leader = world.node("leader", deadline=2.6)
    world.lead_with(leader)
    leader.is_cut_off = True
    last = LEASE
    while world.leaders():
        if leader.run_until_request("extend"):
            term = leader.election.term
            assert term is not None
            last = leader.next.seconds
            assert last <= term.trusted_until - world.clock()
            leader.step()
        world.clock.advance(0.01)
    assert last < LEASE / 6, "the last one was sent shortly before"


def test_a_lease_is_not_released_while_a_callback_runs(world: World) -> None:
    """The node resigns, and cannot renew until the callback returns: the lease expires."""
    node = world.node("busy")
    world.lead_with(node)
    is_busy = True
    node.election.is_busy = lambda: is_busy
    lease = node.election.lease
    assert lease is not None
    node.wake("resign")
    node.is_cut_off = True
    world.pass_time(DEADLINE + RETRY, node)
    assert node.election.lease is None
    assert lease.is_lost()
    is_busy = False
    node.is_cut_off = False
    world.pass_time(RETRY, node)
    assert "release" not in node.requested


def demote(world: World, node: Stepped, cooldown: float) -> None:
    assert node.holder is not None
    request = Demotion(node.holder, timedelta(seconds=cooldown)).request("election", timedelta(seconds=DEADLINE))
    world.store.take_over(request)


@pytest.mark.parametrize("takeover", ["expired", "observed"])
def test_a_node_that_is_demoted_while_it_resigns_is_no_candidate_for_the_cooldown(
    world: World, takeover: Takeover
) -> None:
    """Its callbacks still run, so it has not released its lease. The failed release does not show why."""
    node = world.node("busy", takeover=takeover)
    world.lead_with(node)
    is_busy = True
    node.election.is_busy = lambda: is_busy
    node.wake("resign")
    node.run()
    demote(world, node, 20.0)
    is_busy = False
    node.wake()
    node.run()
    assert node.requested[-2:] == ["release", "record"]
    world.pass_time(19.9, node)
    assert world.leaders() == []
    world.pass_time(0.2, node)
    assert world.leaders() == ["busy"]


def test_the_demotion_of_another_node_does_not_cut_a_cooldown_short(world: World) -> None:
    first, second = world.node("first", takeover="expired"), world.node("second", takeover="expired")
    world.lead_with(first)
    demote(world, first, 60.0)
    assert world.lead_with(first, second) is second
    demote(world, second, 10.0)
    world.pass_time(9.9, first, second)
    assert world.leaders() == []
    world.lead_with(first, second)
    assert world.leaders() == ["second"]


def test_nodes_that_cannot_reach_the_store_back_off_each_for_another_time(world: World) -> None:
    nodes = [world.node(f"node-{number}") for number in range(50)]
    for node in nodes:
        node.is_cut_off = True
    for shortest, longest in [(RETRY, 2 * RETRY), *[(RETRY, LEASE)] * 5, (LEASE / 2, LEASE)]:
        for node in nodes:
            node.run()
        pauses = [node.next.until - world.clock() for node in nodes]
        assert min(pauses) >= shortest
        assert max(pauses) <= longest
        assert len({round(pause / RETRY, 1) for pause in pauses}) >= 5
        world.clock.advance(LEASE)


def test_a_follower_that_has_reached_the_store_again_backs_off_anew(world: World) -> None:
    """Otherwise a lost reply, hours after an outage, would let it sleep for a lease, and the leader may die then."""
    leader, follower = world.led_by("leader", "follower")
    follower.is_cut_off = True
    world.pass_time(5 * LEASE, leader, follower)
    follower.is_cut_off = False
    world.pass_time(2 * LEASE, leader, follower)
    follower.is_cut_off = True
    until_request("record", follower, world)
    follower.run()
    assert follower.next.until - world.clock() <= 2 * RETRY


@pytest.mark.parametrize("takeover", ["expired", "observed"])
def test_what_an_idle_election_costs(world: World, takeover: Takeover) -> None:
    """At the default durations: a leader renews, and a follower reads, once per retry period."""
    nodes = [world.node(f"node-{number}", 15.0, 10.0, 2.0, takeover) for number in range(5)]
    world.pass_time(60, *nodes)
    (leader,) = world.leaders()
    for node in nodes:
        node.requested.clear()
    world.pass_time(60, *nodes)
    for node in nodes:
        assert set(node.requested) == {"extend" if node.holder == leader else "record"}
        assert len(node.requested) in (range(29, 32) if node.holder == leader else range(25, 31))


# Pauses


@pytest.mark.parametrize("takeover", ["observed", "expired"])
@pytest.mark.parametrize("how", ["is resumed", "ends"])
def test_nobody_leads_while_the_name_is_paused(world: World, takeover: Takeover, how: str) -> None:
    """A pause is not renewed, like a dead leader's lease, but nobody takes it by force."""
    leader, follower = world.node("leader", takeover=takeover), world.node("follower", takeover=takeover)
    world.lead_with(leader)
    assert world.store.pause("election", "1m").is_paused is False
    world.pass_time(LEASE, leader)
    assert world.leaders() == ["leader"]
    leader.wake("resign")
    leader.run()
    assert world.store.pause("election", "1m").is_paused
    world.pass_time(59, leader, follower)
    assert world.leaders() == []
    assert "take_over" not in leader.requested + follower.requested
    if how == "is resumed":
        assert world.store.resume("election")
    world.pass_time(1 + 2 * LEASE, leader, follower)
    assert len(world.leaders()) == 1


def test_a_take_over_ends_a_pause(world: World) -> None:
    node = world.node("node")
    assert world.store.pause("election", "1h").is_paused
    world.pass_time(LEASE, node)
    node.wake("take_over")
    world.lead_alone(node)
