"""Fencing tokens strictly increase for all majorities and all clock differences (I7)."""

from __future__ import annotations

import threading
from itertools import combinations, pairwise

import pytest

from shedlock_py import LockRequest
from tests.stores.redis_quorum.quorums import NAME, Quorum, acquired
from tests.support.locks import token_of

pytestmark = pytest.mark.usefixtures("long_grace")

DAY = 86_400_000_000


def set_ahead(quorum: Quorum, number: int, token: int, name: str = NAME) -> None:
    """Set a token as if that server's clock had been ahead at its last grant."""
    quorum.send(number, "HSET", quorum.key(name), "fencing_token", token)


def test_i7_tokens_grow_whichever_minority_is_away(quorum: Quorum, kind: str) -> None:
    provider = quorum.provider(kind=kind, via_proxies=True)
    tokens: list[int] = []
    for _ in range(3):
        for away in combinations(range(quorum.size), quorum.size - quorum.majority):
            quorum.cut_off(*away)
            lease = acquired(provider)
            assert provider.release(lease)
            tokens.append(token_of(lease))
    assert_increasing(tokens)


@pytest.mark.parametrize("fast", [0, 1, 2])
@pytest.mark.parametrize("operation", ["acquire", "take_over"])
def test_i7_tokens_grow_although_a_clock_is_ahead(quorum: Quorum, operation: str, fast: int) -> None:
    """The other servers must remember the token of the absent server."""
    provider = quorum.provider(via_proxies=True)
    tokens = [token_of(acquired(provider))]
    tokens.append(token_of(provider.take_over(LockRequest(NAME, "1m"))))
    set_ahead(quorum, fast, quorum.now(fast) + DAY)
    minorities = list(combinations(range(quorum.size), quorum.size - quorum.majority))
    quorum.cut_off(*next(away for away in minorities if fast not in away))
    for away in [(), *minorities, *reversed(minorities)]:
        if operation == "acquire":
            provider.force_release(NAME)
            tokens.append(token_of(acquired(provider)))
        else:
            tokens.append(token_of(provider.take_over(LockRequest(NAME, "1m"))))
        quorum.cut_off(*away)
    assert tokens[2] > quorum.now(fast) + DAY // 2
    assert_increasing(tokens)


def test_i7_a_token_is_the_same_on_a_majority_before_it_is_handed_out(quorum: Quorum, kind: str) -> None:
    provider = quorum.provider(kind=kind)
    assert provider.release(acquired(provider))
    for number in range(quorum.size):
        set_ahead(quorum, number, quorum.now(number) + DAY + 1000 * number)
    lease = acquired(provider)
    stored = [int(quorum.fields(number)["fencing_token"]) for number in range(quorum.size)]
    assert stored.count(token_of(lease)) >= quorum.majority
    assert max(stored) == token_of(lease)


def test_i7_a_take_over_and_an_acquire_get_different_tokens(quorum: Quorum) -> None:
    """Each server ends with the greatest of the tokens, or with a token that its claimant did not get."""
    providers = [quorum.provider(kind=kind) for kind in ("sync", "sync", "async", "async")]
    for number in range(10):
        name, barrier = f"job-{number}", threading.Barrier(len(providers))
        tokens: list[int] = []

        def claim(
            index: int, name: str = name, barrier: threading.Barrier = barrier, tokens: list[int] = tokens
        ) -> None:
            provider, request = providers[index], LockRequest(name, "1m")
            barrier.wait(10)
            lease = provider.take_over(request) if index % 2 else provider.acquire(request)
            if lease is not None:
                tokens.append(token_of(lease))

        threads = [threading.Thread(target=claim, args=(index,)) for index in range(len(providers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(tokens) in (2, 3), "both take over; an acquire may come before"
        assert len(set(tokens)) == len(tokens)
        record = providers[0].record(name)
        assert record is not None
        assert record.is_held
        assert record.fencing_token == max(tokens)


def assert_increasing(tokens: list[int]) -> None:
    assert all(first < second for first, second in pairwise(tokens)), tokens
