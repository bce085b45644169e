"""A leader's term is a run: providers with history record it, from the lease's grant to its end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from shedlock_py import AsyncInMemoryLockProvider, InMemoryLockProvider, LockRequest
from shedlock_py.election.demotion import Demotion
from shedlock_py.election.settings import Takeover
from shedlock_py.model.overdue import punctuality
from shedlock_py.model.run import Run
from tests.election.conftest import MakeElector
from tests.election.electors import LONG, real_time
from tests.election.test_elector import lead
from tests.election.test_observed import World
from tests.support.doubles import FaultyProvider
from tests.support.holders import unchecked
from tests.support.polling import wait_until

HOURS: dict[str, Any] = {"lease": 900.0, "deadline": 600.0, "retry": 60.0}


@pytest.fixture
def store() -> Iterator[FaultyProvider]:
    store = FaultyProvider(InMemoryLockProvider(history=20))
    yield store
    store.recover()


@pytest.fixture
def provider(store: FaultyProvider, kind: str) -> Any:
    """The provider for the elector of this kind."""
    return store if kind == "threads" else AsyncInMemoryLockProvider(shared_with=store.inner, history=20)


def terms(store: Any) -> list[Run]:
    found: list[Run] = getattr(store, "inner", store).runs("election")
    return found


def ended(store: Any, outcome: str) -> Run:
    """Return the last term, once it has this outcome."""
    wait_until(lambda: [run.outcome for run in terms(store)[:1]] == [outcome], what=f"a term that is {outcome}")
    return terms(store)[0]


@pytest.mark.parametrize("how", ["resign", "stop"])
def test_a_term_from_its_grant_to_its_resignation(
    how: str, make_elector: MakeElector, provider: Any, store: FaultyProvider
) -> None:
    elector = make_elector("node-1", provider, **LONG)
    token = lead(elector)
    [run] = terms(store)
    assert (run.holder, run.fencing_token, run.outcome, run.ended) == ("node-1", token, None, None)
    getattr(elector, how)()
    run = ended(store, "ok")
    assert (run.fencing_token, run.error) == (token, None)
    assert run.ended is not None
    elector.stop()


def test_a_term_that_was_taken_over_is_lost(make_elector: MakeElector, provider: Any, store: FaultyProvider) -> None:
    elector = make_elector("node-1", provider, **LONG)
    token = lead(elector)
    other = store.inner.take_over(LockRequest("election", "1h", holder="node-2"))
    wait_until(lambda: [run.outcome for run in terms(store)] == [None, "lost"], what="the end of the former term")
    assert [run.fencing_token for run in terms(store)] == [other.fencing_token, token]
    record = store.inner.record("election")
    assert record is not None
    assert record.locked_by == other.locked_by  # the successor's lease is unchanged
    assert record.is_held


@pytest.mark.not_quick("waits for real seconds")
@pytest.mark.parametrize("kind", ["threads"], indirect=True)
def test_a_term_that_ended_without_the_store(make_elector: MakeElector, store: FaultyProvider) -> None:
    elector = make_elector("node-1", store)
    token = lead(elector)
    store.fail()
    wait_until(lambda: not elector.is_leader(), what="the end of the trust")
    assert [run.outcome for run in terms(store)] == [None]
    store.recover()
    assert elector.wait_until_leader("10s")
    assert [(run.outcome, run.fencing_token == token) for run in terms(store)] == [(None, False), ("lost", True)]


@real_time
def test_a_demotion_is_no_term(make_elector: MakeElector, provider: Any, store: FaultyProvider) -> None:
    elector = make_elector("node-1", provider)
    lead(elector)
    assert elector.demote()
    wait_until(lambda: len(terms(store)) == 3, what="the next term")
    assert elector.wait_until_leader("10s")
    term, demotion, former = terms(store)
    assert [(run.is_demotion, run.outcome) for run in (term, demotion, former)] == [
        (False, None),
        (True, "ok"),
        (False, "lost"),
    ]
    assert demotion.ended == term.started


def test_only_a_demotion_looks_like_one() -> None:
    store = InMemoryLockProvider(history=5)
    for name, holder, is_one in (
        ("a", Demotion("node-1", timedelta(seconds=10)).holder, True),
        ("b", Demotion("", timedelta(0)).holder, True),
        ("big", f"demoted {'9' * 9999}ms node-1", True),  # int() rejects so many digits
        ("c", "demoted node-1", False),
        ("d", "was demoted 5ms node-1", False),
        ("e", "demoted 10", False),
        ("f", "demoted \N{ARABIC-INDIC DIGIT THREE}ms node-1", False),
    ):
        lease = store.acquire(unchecked(name, "1h", holder))
        record = store.record(name)
        assert lease
        assert record
        [run] = store.runs(name)
        assert run.is_demotion is (Demotion.from_record(record) is not None) is is_one
        assert store.release(lease)


def test_demotions_are_no_terms_of_a_cadence() -> None:
    world = World()
    store = world.store = InMemoryLockProvider(clock=world.clock, history=20)
    for holder in ("node-1", "demoted 0ms node-1") * 4:
        lease = store.acquire(unchecked("election", "1m", holder))
        assert lease
        world.clock.advance("10m")
        assert not store.release(lease)
    record = store.record("election")
    assert record
    job = punctuality(record, store.runs("election"))
    assert (job.basis, job.due and job.due - store.runs("election")[1].started) == ("cadence", timedelta(minutes=30))


# In virtual time


def test_extending_for_hours_writes_no_more() -> None:
    world = World()
    store = world.store = InMemoryLockProvider(clock=world.clock, history=20)
    node = world.node("node-1", **HOURS)
    other = world.node("node-2", takeover="expired", **HOURS)
    for _ in range(60):
        world.clock.advance("1m")
        for each in (node, other):
            each.run()
    [leader] = [each for each in (node, other) if each.election.is_leader()]
    before, requested = terms(store), leader.requested.count("extend")
    assert len(before) == 1
    for _ in range(12 * 60):
        world.clock.advance("1m")
        for each in (node, other):
            each.run()
    assert leader.election.is_leader()
    assert leader.requested.count("extend") - requested >= 11 * 60
    assert terms(store) == before
    leader.wake("stop")
    with pytest.raises(StopIteration):
        leader.run()
    [run] = terms(store)
    assert (run.outcome, run.duration and run.duration >= timedelta(hours=12)) == ("ok", True)


@pytest.mark.parametrize("takeover", ["expired", "observed"])
def test_i3_a_lost_lease_that_the_store_still_has_is_left_to_expire(takeover: Takeover) -> None:
    """Callbacks of a leader that lost the store may still run, so nothing frees its name before the lease ends."""
    world = World()
    store = world.store = InMemoryLockProvider(clock=world.clock, history=20)
    node = world.node("node-1", lease=30.0, deadline=2.0, retry=0.5, takeover=takeover)
    world.lead_with(node) if takeover == "expired" else world.pass_time(40.0, node)
    assert node.election.is_leader()
    node.is_cut_off = True
    world.pass_time(2.5, node)
    assert not node.election.is_leader()
    node.is_cut_off = False
    until = store.records()[0].lock_until
    world.pass_time(15.0, node)
    [record] = store.records()
    assert (record.is_held, record.lock_until) == (True, until)
    assert "release" not in node.requested
    world.pass_time(60.0, node)
    assert node.election.is_leader()
    assert node.requested.count("release") == 1
    assert [run.outcome for run in terms(store)] == [None, "lost"]


def test_a_store_that_fails_at_the_end_of_a_lost_term_harms_nothing() -> None:
    world = World()
    store = world.store = InMemoryLockProvider(clock=world.clock, history=20)
    node = world.node("node-1", takeover="expired")
    world.lead_with(node)
    taken = store.take_over(LockRequest("election", "1s", holder="node-2"))
    assert node.run_until_request("release") or _runs_into(world, node)
    node.is_cut_off = True
    node.step()
    node.is_cut_off = False
    world.pass_time(10.0, node)
    assert node.election.is_leader()
    assert node.requested.count("release") == 1
    assert taken.fencing_token in [run.fencing_token for run in terms(store)]


def _runs_into(world: World, node: Any) -> bool:
    for _ in range(200):
        world.clock.advance(0.01)
        if node.run_until_request("release"):
            return True
    return False
