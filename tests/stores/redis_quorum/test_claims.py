"""Competing claims and dead claims: at most one claim gets the lease, and no claim blocks others for long."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import combinations

import pytest

from shedlock_py import LockRequest
from shedlock_py.providers.redis.quorum.quorum_programs import VOTE
from tests.stores.redis_quorum.quorums import NAME, Quorum, acquired, outcome
from tests.support import tiers
from tests.support.polling import wait_until

pytestmark = pytest.mark.usefixtures("long_grace")

CLAIMANTS = 6
REPEATS = 20 if tiers.runs("full") else 5
FIRE_TIME = datetime(2026, 1, 1, tzinfo=UTC)
THREE_SECONDS = pytest.mark.parametrize(
    ("size", "kind"), [(3, "sync"), pytest.param(5, "async", marks=pytest.mark.slow("waits for three seconds"))]
)


@pytest.mark.parametrize("dead", [0, 1])
def test_i1_one_winner_each_time(quorum: Quorum, dead: int) -> None:
    without = range(dead)
    kinds = ("sync", "async", "sync")
    providers = [quorum.provider(kind=kind, without=without, timeout="60s") for kind in kinds]
    barrier = threading.Barrier(CLAIMANTS)

    def claim(number: int) -> list[str]:
        outcomes = []
        for attempt in range(REPEATS):
            barrier.wait(120)
            outcomes.append(outcome(providers[number % len(providers)], f"job-{attempt}"))
        return outcomes

    with ThreadPoolExecutor(CLAIMANTS) as pool:
        columns = list(pool.map(claim, range(CLAIMANTS)))
    counts = [Counter(outcomes) for outcomes in zip(*columns, strict=True)]
    assert counts == [{"lease": 1, "skip": CLAIMANTS - 1}] * REPEATS


@THREE_SECONDS
@pytest.mark.parametrize("majority", [True, False], ids=["with a majority", "with a minority"])
def test_i3_a_claimant_that_dies_between_the_broadcasts(quorum: Quorum, kind: str, majority: bool) -> None:
    """Its votes block other claims for three seconds at most, its fire time stays unused, and no record shows it."""
    provider = quorum.provider(kind=kind)
    assert provider.release(acquired(provider))
    before = provider.record(NAME)
    voters = range(quorum.majority if majority else quorum.majority - 1)
    began = quorum.now(0)
    program, votes = quorum.by_hand().votes(LockRequest(NAME, "1h", fire_time=FIRE_TIME), voters)
    program.close()
    assert [reply[0] for reply in votes if isinstance(reply, list)] == [1] * len(voters)
    assert provider.record(NAME) == before
    assert outcome(provider, fire_time=FIRE_TIME) == ("skip" if majority else "lease")
    wait_until(lambda: majority is False or outcome(provider, fire_time=FIRE_TIME) == "lease", what="the lock free")
    took = timedelta(microseconds=quorum.now(0) - began)
    assert took < VOTE + timedelta(seconds=30)  # and not for as long as the lease
    assert not majority or took >= VOTE * 0.99


@THREE_SECONDS
def test_i3_a_vote_of_the_dead_ends_also_with_a_server_down(quorum: Quorum, kind: str) -> None:
    """No claim has a majority until that vote expires: neither a skip nor an error."""
    away = range(quorum.size - quorum.majority)
    voter = quorum.size - 1
    program, _ = quorum.by_hand().votes(LockRequest(NAME, "1h"), [voter])
    program.close()
    assert outcome(quorum.provider(kind=kind, without=away)) == "lease"


def test_i11_a_fire_time_that_another_majority_granted_runs_once(quorum: Quorum, kind: str) -> None:
    minorities = list(combinations(range(quorum.size), quorum.size - quorum.majority))
    everybody = quorum.provider(kind=kind)
    lease = acquired(quorum.provider(kind=kind, without=minorities[0]), fire_time=FIRE_TIME)
    assert everybody.release(lease)
    for away in minorities:
        provider = quorum.provider(kind=kind, without=away)
        # A skip if a majority confirms that it ran; an error if it may have run.
        for fire_time in (FIRE_TIME, FIRE_TIME - timedelta(days=1)):
            found = outcome(provider, fire_time=fire_time)
            assert found == "skip" if away == minorities[0] else found == "skip" or "did not reply" in found, away
    lease = acquired(quorum.provider(kind=kind, without=minorities[-1]), fire_time=FIRE_TIME + timedelta(seconds=1))
    assert everybody.release(lease)
    assert outcome(everybody, fire_time=FIRE_TIME + timedelta(seconds=1)) == "skip"


def test_i4_the_minimum_hold_is_on_every_majority(quorum: Quorum, kind: str) -> None:
    minorities = list(combinations(range(quorum.size), quorum.size - quorum.majority))
    lease = acquired(quorum.provider(kind=kind, without=minorities[0]), lock_at_least_for="30s")
    assert quorum.provider(kind=kind).release(lease)
    for away in minorities:
        assert outcome(quorum.provider(kind=kind, without=away)) == "skip", away
    for number in range(len(minorities[0]), quorum.size):
        left = int(quorum.fields(number)["lock_until"]) - quorum.now(number)
        assert 20_000_000 < left <= 30_000_000
