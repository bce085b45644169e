"""A minority's servers die, freeze and return at any moment; the lock goes on."""

from __future__ import annotations

import random
from functools import partial
from itertools import combinations

import pytest

from tests.stores.redis_quorum.quorums import Quorum, acquired, outcome
from tests.stores.redis_quorum.workers import Workers
from tests.support.polling import wait_until

LONGEST = "1s"
KILLS = 3
FREEZES = 6
RANDOM = pytest.mark.slow("workers, while servers die at random")


def workers_on(quorum: Quorum) -> Workers:
    kinds = ["sync", "sync", "async", "async"]
    return Workers([quorum.provider(kind=kind, longest_lease=LONGEST) for kind in kinds], at_most=LONGEST)


@RANDOM
def test_i1_servers_are_killed_and_restarted(quorum: Quorum) -> None:
    with workers_on(quorum) as workers:
        workers.wait_for_progress()
        for _ in range(KILLS):
            victims = random.sample(range(quorum.size), quorum.size - quorum.majority)
            for number in victims:
                quorum.servers[number].kill()
            workers.wait_for_progress()
            for number in victims:
                quorum.servers[number].start()  # empty
            workers.wait_for_progress()
            wait_until(lambda: all(map(quorum.votes, range(quorum.size))), what="all servers vote")
    workers.check()
    assert len(workers.unreachable) < workers.grants / 4


@RANDOM
def test_i1_servers_freeze_for_a_moment(quorum: Quorum) -> None:
    """At random, in the middle of a broadcast. The servers carry out their pending commands late."""
    with workers_on(quorum) as workers:
        victims = random.sample(range(quorum.size), quorum.size - quorum.majority)
        for _ in range(FREEZES):
            for number in victims:
                quorum.servers[number].pause()
            workers.wait_for_progress(2)
            for number in victims:
                quorum.servers[number].resume()
            workers.wait_for_progress(1)
        # Late votes block a server for three seconds.
        resumed = {number: quorum.now(number) for number in victims}
        wait_until(partial(took_part, quorum, resumed), what="these servers grant leases again")
    workers.check()
    assert len(workers.unreachable) < workers.grants / 4


def took_part(quorum: Quorum, since: dict[int, int]) -> bool:
    return all(int(quorum.fields(number).get("locked_at", 0)) > moment for number, moment in since.items())


@pytest.mark.usefixtures("long_grace")
def test_i1_a_lease_granted_without_a_minority_holds_everywhere(quorum: Quorum, kind: str) -> None:
    minorities = combinations(range(quorum.size), quorum.size - quorum.majority)
    providers = {minority: quorum.provider(kind=kind, without=minority) for minority in minorities}
    for minority, provider in providers.items():
        name = f"job-{minority}"
        lease = acquired(provider, name)
        assert {other: outcome(providers[other], name) for other in providers} == dict.fromkeys(providers, "skip")
        assert provider.extend(lease, "2m")
        assert quorum.provider(kind=kind).release(lease)
