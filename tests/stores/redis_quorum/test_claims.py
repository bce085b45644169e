"""Claims that meet, and claims that die: at most one gets the lease, and none blocks the others for long."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import combinations

import pytest

from shedlock_py import LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.redis.quorum.programs import VOTE
from tests.stores.redis_quorum.by_hand import ByHand
from tests.stores.redis_quorum.quorums import NAME, Quorum, acquired, outcome
from tests.support.polling import wait_until

pytestmark = pytest.mark.usefixtures("patient")

CLAIMANTS = 6
ROUNDS = 20
FIRE_TIME = datetime(2026, 1, 1, tzinfo=UTC)
THREE_SECONDS = pytest.mark.parametrize(("size", "kind"), [(3, "sync"), (5, "async")])  # each takes that long


@pytest.mark.parametrize("dead", [0, 1])
def test_i1_one_winner_each_round(quorum: Quorum, dead: int) -> None:
    without = range(dead)
    providers = [quorum.provider(kind=("sync", "async")[number % 2], without=without) for number in range(3)]
    barrier = threading.Barrier(CLAIMANTS)

    def claim(number: int) -> list[str]:
        answers = []
        for attempt in range(ROUNDS):
            barrier.wait(30)
            answers.append(outcome(providers[number % len(providers)], f"job-{attempt}"))
        return answers

    with ThreadPoolExecutor(CLAIMANTS) as pool:
        columns = list(pool.map(claim, range(CLAIMANTS)))
    rounds = [Counter(answers) for answers in zip(*columns, strict=True)]
    assert rounds == [{"lease": 1, "skip": CLAIMANTS - 1}] * ROUNDS


@THREE_SECONDS
@pytest.mark.parametrize("majority", [True, False], ids=["with a majority", "with a minority"])
def test_i3_a_claimant_that_dies_between_the_rounds(quorum: Quorum, kind: str, majority: bool) -> None:
    """Its votes block the others for three seconds at most, its fire time is unused, no record tells of it."""
    provider = quorum.provider(kind=kind)
    assert provider.release(acquired(provider))
    before = provider.record(NAME)
    voters = range(quorum.majority if majority else quorum.majority - 1)
    began = quorum.now(0)
    program, votes = ByHand(quorum.provider()).votes(LockRequest(NAME, "1h", fire_time=FIRE_TIME), voters)
    program.close()
    assert [reply[0] for reply in votes if isinstance(reply, list)] == [1] * len(voters)
    assert provider.record(NAME) == before
    assert outcome(provider, fire_time=FIRE_TIME) == ("skip" if majority else "lease")
    wait_until(lambda: majority is False or outcome(provider, fire_time=FIRE_TIME) == "lease", what="the lock free")
    took = timedelta(microseconds=quorum.now(0) - began)
    assert took < VOTE + timedelta(seconds=3)
    assert not majority or took >= VOTE * 0.99


@THREE_SECONDS
def test_a_vote_of_the_dead_and_a_server_down(quorum: Quorum, kind: str) -> None:
    """Nobody has a majority until that vote expires; that is worth waiting for, and is neither a skip nor an error."""
    away = range(quorum.size - quorum.majority)
    voter = quorum.size - 1
    program, _ = ByHand(quorum.provider()).votes(LockRequest(NAME, "1h"), [voter])
    program.close()
    assert outcome(quorum.provider(kind=kind, without=away)) == "lease"


def test_i11_a_fire_time_that_another_majority_granted(quorum: Quorum, kind: str) -> None:
    minorities = list(combinations(range(quorum.size), quorum.size - quorum.majority))
    everybody = quorum.provider(kind=kind)
    lease = acquired(quorum.provider(kind=kind, without=minorities[0]), fire_time=FIRE_TIME)
    assert everybody.release(lease)
    for away in minorities:
        provider = quorum.provider(kind=kind, without=away)
        # A skip where a majority says that it ran; an error where it might have.
        for fire_time in (FIRE_TIME, FIRE_TIME - timedelta(days=1)):
            said = outcome(provider, fire_time=fire_time)
            assert said == "skip" if away == minorities[0] else said == "skip" or "did not reply" in said, away
    lease = acquired(quorum.provider(kind=kind, without=minorities[-1]), fire_time=FIRE_TIME + timedelta(seconds=1))
    assert everybody.release(lease)
    assert outcome(everybody, fire_time=FIRE_TIME + timedelta(seconds=1)) == "skip"


def test_i11_a_claim_that_failed_does_not_use_up_its_fire_time(quorum: Quorum, kind: str) -> None:
    failing = quorum.provider(kind=kind, without=range(quorum.majority))
    assert "did not reply" in outcome(failing, fire_time=FIRE_TIME)
    provider = quorum.provider(kind=kind)
    held = acquired(provider)
    assert outcome(provider, fire_time=FIRE_TIME) == "skip"
    assert provider.release(held)
    assert outcome(provider, fire_time=FIRE_TIME) == "lease"


def test_i4_the_minimum_hold_is_on_every_majority(quorum: Quorum, kind: str) -> None:
    minorities = list(combinations(range(quorum.size), quorum.size - quorum.majority))
    lease = acquired(quorum.provider(kind=kind, without=minorities[0]), lock_at_least_for="30s")
    assert quorum.provider(kind=kind).release(lease)
    for away in minorities:
        assert outcome(quorum.provider(kind=kind, without=away)) == "skip", away
    for number in range(len(minorities[0]), quorum.size):
        left = int(quorum.fields(number)["lock_until"]) - quorum.now(number)
        assert 20_000_000 < left <= 30_000_000


@pytest.mark.parametrize("size", [3])
def test_i11_a_fire_time_that_is_too_late_is_an_error_for_a_held_lock_too(quorum: Quorum, kind: str) -> None:
    provider = quorum.provider(kind=kind)
    lease = acquired(provider)
    with pytest.raises(ProviderError, match="later than the store's clock") as error:
        provider.acquire(LockRequest(NAME, "1m", fire_time=datetime.now(UTC) + timedelta(days=1)))
    assert not isinstance(error.value, ProviderUnreachable)
    assert provider.extend(lease, "1m")
