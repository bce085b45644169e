"""Data lost without a restart, and values that cannot be read."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from shedlock_py import LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.kit import locking
from tests.stores.redis_quorum.quorums import NAME, Quorum, acquired, leave_out_of_scripts, outcome
from tests.support.availability import private_server
from tests.support.locks import token_of
from tests.support.polling import wait_until
from tests.support.redis import RedisServer

pytestmark = pytest.mark.usefixtures("long_grace")

FIRE_TIME = datetime(2024, 1, 1, tzinfo=UTC)
DAY = 86_400_000_000


@pytest.fixture
def size() -> int:
    return 3


def replicate(quorum: Quorum, number: int, server: RedisServer) -> None:
    """Make a server a replica of another server, and wait for its data."""
    host, port = server.address
    quorum.send(number, "REPLICAOF", host, port)
    with quorum.servers[number].client() as client:
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", what="a replica with the data")


def second_claim(redis_nodes: list[RedisServer], kind: str) -> str:
    """Fail server 1 over to a replica that lacks a lease, and back, between two votes. Its run id stays the same."""
    with ExitStack() as stack:
        first, replica = (stack.enter_context(private_server("redis", RedisServer)) for _ in range(2))
        pair = Quorum([first, replica], create=False)
        replicate(pair, 1, first)
        quorum = Quorum([redis_nodes[0], first, redis_nodes[2]])
        stack.callback(quorum.close)
        wait_until(lambda: pair.send(1, "EXISTS", f"{quorum.prefix}:node") == 1, what="the replica with the data")
        pair.send(1, "REPLICAOF", "NO", "ONE")
        quorum.cut_off(2)
        acquired(quorum.provider(kind=kind, via_proxies=True))
        assert quorum.is_held(1)
        replicate(pair, 0, replica)
        pair.send(0, "REPLICAOF", "NO", "ONE")
        assert quorum.fields(1) == {}, "it has forgotten the lease"
        return outcome(quorum.provider(kind=kind, without=[0]))


def test_i1_a_server_that_fails_over_to_a_stale_replica_and_back_is_quarantined(
    redis_nodes: list[RedisServer], kind: str
) -> None:
    assert "1 of 3 are in quarantine for" in second_claim(redis_nodes, kind)


def test_i1_without_the_replication_id_a_stale_replica_would_grant(
    redis_nodes: list[RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    leave_out_of_scripts(monkeypatch, b" or node[4] ~= replid then", b" then")
    assert second_claim(redis_nodes, "sync") == "lease"


# Values that another program has written


def test_an_odd_value_on_a_minority_disturbs_nobody(quorum: Quorum, kind: str) -> None:
    provider = quorum.provider(kind=kind)
    assert provider.release(acquired(provider))
    quorum.send(1, "HSET", quorum.key(), "lock_until", "soon")
    lease = acquired(provider)
    record = provider.record(NAME)
    assert record is not None
    assert record.is_held
    assert provider.records() == [record]
    assert provider.extend(lease, "2m") is lease
    assert provider.release(lease)


@pytest.mark.parametrize("field", ["lock_until", "fencing_token"])
def test_an_odd_value_on_a_majority_is_an_error_for_that_name(
    quorum: Quorum, kind: str, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider = quorum.provider(kind=kind)
    other = acquired(provider, "other")
    assert provider.release(acquired(provider))
    for number in (0, 1):
        quorum.send(number, "HSET", quorum.key(), field, "soon")
    host, port = quorum.servers[0].address
    for work in (
        lambda: provider.acquire(LockRequest(NAME, "1m")),
        lambda: provider.record(NAME),
    ):
        with pytest.raises(ProviderError, match=rf"2 of 3 servers reported an error \({host}:{port}: .*{field}") as odd:
            work()
        assert not isinstance(odd.value, ProviderUnreachable)
        assert "did not reply" not in str(odd.value)
        assert odd.value.lock_name == NAME
    with caplog.at_level(logging.WARNING):
        assert [record.name for record in provider.records()] == ["other"]
    assert f"lock {NAME!r} is left out" in caplog.text
    assert provider.release(other)


# Take-overs that arrive late


def test_i2_a_take_over_that_arrives_late_takes_the_lock_from_no_later_holder(quorum: Quorum) -> None:
    """Not even a take-over with a greater token, from a server with a fast clock."""
    provider = quorum.provider()
    assert provider.release(acquired(provider))
    quorum.send(2, "HSET", quorum.key(), "fencing_token", quorum.now(2) + DAY)
    hand = quorum.by_hand()
    program = locking.take_over(hand.programs, LockRequest(NAME, "1h"))
    confirmation = program.send(hand.on(range(3), next(program)))
    program.close()
    successor = acquired(quorum.provider(without=[2]))
    for _ in range(2):
        assert hand.on(range(2), confirmation)[:2] == [0, 0]
    assert provider.extend(successor, "1m") is successor
    assert token_of(successor) < quorum.now(2) + DAY // 2, "the take-over had a greater one"
    assert provider.release(successor)


def test_i2_a_second_copy_of_a_take_over_matches_nothing(quorum: Quorum, kind: str) -> None:
    provider = quorum.provider(kind=kind)
    acquired(provider)
    hand = quorum.by_hand()
    program = locking.take_over(hand.programs, LockRequest(NAME, "1h"))
    confirmation = program.send(hand.on(range(3), next(program)))
    with pytest.raises(StopIteration) as done:
        program.send(hand.on(range(3), confirmation))
    lease = done.value.value
    assert hand.on(range(3), confirmation) == [1, 1, 1], "repeated because the reply was lost"
    assert provider.release(lease)
    assert hand.on(range(3), confirmation) == [0, 0, 0]
    successor = acquired(provider)
    assert hand.on(range(3), confirmation) == [0, 0, 0]
    assert provider.extend(successor, "1m") is successor


# Fire times


def test_i11_a_claim_that_fails_in_its_second_round_gives_its_fire_time_back(quorum: Quorum) -> None:
    hand = quorum.by_hand()
    program, replies = hand.votes(LockRequest(NAME, "1m", fire_time=FIRE_TIME), range(3))
    replies = hand.on([0], program.send(replies))
    replies[1:] = [0, 0]
    undo = program.send(replies)
    assert quorum.is_held(0)
    hand.on(range(3), undo)
    program.close()
    assert not quorum.is_held(0)
    for away in ([], [1], [2]):
        provider = quorum.provider(without=away)
        lease = acquired(provider, fire_time=FIRE_TIME)
        assert provider.undo(lease)  # type: ignore[attr-defined]  # not of the protocol


def test_forget_fire_time_works_without_a_minority(quorum: Quorum, kind: str) -> None:
    everybody = quorum.provider(kind=kind)
    assert everybody.release(acquired(everybody, fire_time=FIRE_TIME))
    assert quorum.provider(kind=kind, without=[2]).forget_fire_time(NAME) is True  # type: ignore[attr-defined]
    assert outcome(everybody, fire_time=FIRE_TIME - timedelta(days=1)) == "lease", "the third is outvoted"


def test_i7_a_take_over_is_not_confirmed_by_a_server_that_was_emptied_since_it_was_read(quorum: Quorum) -> None:
    hand = quorum.by_hand()
    program = locking.take_over(hand.programs, LockRequest("new", "1m"))
    confirmation = program.send(hand.on(range(3), next(program)))
    quorum.send(0, "FLUSHALL")
    assert hand.on(range(3), confirmation) == [0, 1, 1]
    program.close()


def test_an_operator_takes_over_in_spite_of_a_quarantine(quorum: Quorum, kind: str) -> None:
    for number in (0, 1):
        quorum.send(number, "FLUSHALL")
    provider = quorum.provider(kind=kind)
    assert "2 of 3 are in quarantine" in outcome(provider)
    lease = provider.take_over(LockRequest(NAME, "1m"))
    assert provider.extend(lease, "1m") is lease
    assert provider.release(lease)
