"""A server's late work must not leave, revive or shorten a lease."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from shedlock_py import LockRequest, ProviderUnreachable
from shedlock_py.providers.kit import locking
from shedlock_py.providers.redis.quorum import broadcast as quorum_clients
from tests.stores.redis_quorum.quorums import NAME, Quorum, acquired, outcome
from tests.support.blocked_loops import block_when_redis_is_asked
from tests.support.polling import wait_until

pytestmark = pytest.mark.usefixtures("long_grace")

MINUTE = 60_000_000


def test_i12_a_confirmation_after_the_release_holds_nothing(quorum: Quorum) -> None:
    provider, hand = quorum.provider(), quorum.by_hand()
    first, last = range(quorum.majority), range(quorum.majority, quorum.size)
    lease, confirmation = hand.late_confirmation(NAME, first, last)
    assert provider.release(lease)
    quorum.wait_until_free()
    for _ in range(2):  # a client that retries
        assert hand.on(range(quorum.size), confirmation) == [0] * quorum.size
    assert not any(map(quorum.is_held, range(quorum.size)))
    assert outcome(quorum.provider(without=[0])) == "lease"


def test_a_confirmation_that_comes_late_but_in_time_counts(quorum: Quorum) -> None:
    provider, hand = quorum.provider(), quorum.by_hand()
    lease, confirmation = hand.late_confirmation(NAME, range(quorum.majority), range(quorum.majority, quorum.size))
    for _ in range(2):
        assert hand.on(range(quorum.size), confirmation) == [1] * quorum.size, "each reply belongs to the first copy"
    assert provider.release(lease)
    quorum.wait_until_free()


@pytest.mark.parametrize("release_arrives", [True, False])
def test_i12_a_server_that_froze_between_the_broadcasts_gives_the_lock_to_nobody(
    quorum: Quorum, release_arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server confirms late. Without the release it keeps a lease, and no claim gets the lock."""
    provider, hand = quorum.provider(), quorum.by_hand()
    frozen = quorum.size - 1
    program, replies = hand.votes(LockRequest(NAME, "1m"), range(quorum.size))
    quorum.servers[frozen].pause()
    with pytest.raises(StopIteration) as done:
        program.send(hand.on(range(quorum.size), program.send(replies)))
    lease = done.value.value
    if release_arrives:  # the release waits until the server replies
        monkeypatch.setattr(quorum_clients, "BROADCAST_SECONDS", 30.0)
        with ThreadPoolExecutor(1) as thread:
            released = thread.submit(quorum.provider(timeout="30s").release, lease)
            wait_until(lambda: not any(map(quorum.is_held, range(frozen))), what="released on the others")
            quorum.servers[frozen].resume()
            assert released.result()
        wait_until(lambda: not quorum.is_held(frozen), what="the lease undone")
    else:
        assert provider.release(lease)
        quorum.servers[frozen].resume()
    record = provider.record(NAME)
    assert record is not None
    assert not record.is_held
    assert outcome(provider) == "lease"


@pytest.mark.parametrize("at_least", ["0s", "30s"])
def test_i2_i4_copies_after_the_release_change_nothing(quorum: Quorum, at_least: str) -> None:
    provider, hand = quorum.provider(), quorum.by_hand()
    lease = acquired(provider, lock_at_least_for=at_least)
    extension, release = hand.extension(lease, "1h"), next(locking.release(hand.programs, lease))
    assert provider.release(lease)
    before = [quorum.fields(number) for number in range(quorum.size)]
    assert hand.on(range(quorum.size), extension) == [0] * quorum.size
    assert hand.on(range(quorum.size), release) == [1] * quorum.size, "repeated because the reply was lost"
    assert [quorum.fields(number) for number in range(quorum.size)] == before
    assert all(map(quorum.is_held, range(quorum.size))) is (at_least == "30s")
    provider.force_release(NAME)
    successor = acquired(provider)
    assert hand.on(range(quorum.size), extension) == [0] * quorum.size
    assert provider.extend(successor, "1m") is successor


def test_i6_an_extension_that_a_later_one_has_overtaken_changes_nothing(quorum: Quorum) -> None:
    """The earlier, shorter extension must not take back the later one's promise."""
    provider, hand = quorum.provider(), quorum.by_hand()
    lease = acquired(provider)
    extension = hand.extension(lease, "1s")
    assert provider.extend(lease, "10m") is lease
    assert hand.on(range(quorum.size), extension) == [1] * quorum.size, "it is still held"
    for number in range(quorum.size):
        assert int(quorum.fields(number)["lock_until"]) - quorum.now(number) > 9 * MINUTE
    assert provider.extend(lease, "2s") is lease, "a shorter extension, in order"
    assert int(quorum.fields(0)["lock_until"]) - quorum.now(0) <= 2_000_000
    assert provider.release(lease)
    successor = acquired(provider)
    assert provider.extend(successor, "1m") is successor
    assert "extended_at" in quorum.fields(0)
    assert provider.release(successor)
    acquired(provider)
    assert "extended_at" not in quorum.fields(0), "another holder has another clock"


def test_i12_a_vote_after_the_claim_has_ended_leaves_no_record(quorum: Quorum) -> None:
    """The server stays blocked for three seconds, other servers go on, and no record appears."""
    provider, hand = quorum.provider(), quorum.by_hand()
    last = quorum.size - 1
    program, _ = hand.votes(LockRequest("unused", "1m"), [last])
    program.close()
    assert provider.record("unused") is None
    assert provider.records() == []
    assert quorum.send(last, "PTTL", quorum.key("unused")) in range(1, 3001)
    lease = acquired(provider, "unused")
    assert quorum.is_held(last, "unused") is False
    assert provider.release(lease)


def test_i1_a_confirmation_whose_vote_has_expired_grants_nothing(quorum: Quorum) -> None:
    """Another claim has voted meanwhile."""
    provider, hand = quorum.provider(), quorum.by_hand()
    program, replies = hand.votes(LockRequest(NAME, "1m"), range(quorum.size))
    confirmation = program.send(replies)
    for number in range(quorum.size):
        quorum.send(number, "HSET", quorum.key(), "vote_until", quorum.now(number) - 1)
    assert hand.on(range(quorum.size), confirmation) == [0] * quorum.size
    lease = acquired(provider)
    assert hand.on(range(quorum.size), confirmation) == [0] * quorum.size
    assert provider.release(lease)
    assert hand.on(range(quorum.size), confirmation) == [0] * quorum.size


def test_i12_a_failed_confirmation_is_undone(quorum: Quorum) -> None:
    """A majority does not reply, but a minority already has the lease."""
    hand = quorum.by_hand(via_proxies=True)
    minority = range(quorum.majority - 1)
    program, replies = hand.votes(LockRequest(NAME, "1m"), range(quorum.size))
    confirmation = program.send(replies)
    quorum.cut_off(*range(quorum.majority - 1, quorum.size))
    undo = program.send(hand.on(range(quorum.size), confirmation))
    assert all(map(quorum.is_held, minority))
    hand.undo(undo)
    with pytest.raises(ProviderUnreachable, match=f"{len(minority)} of {quorum.size} servers have confirmed"):
        program.send(None)
    assert not any(map(quorum.is_held, minority))


@pytest.mark.slow("blocks the event loop for many seconds")
@pytest.mark.parametrize("size", [3])
def test_replies_that_arrived_while_the_event_loop_was_blocked_count(
    quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block exceeds a broadcast's waits for a majority and for other servers."""
    provider = quorum.provider(kind="async")
    lease = acquired(provider)  # so the servers know the scripts' hashes, and the connections are open
    assert outcome(provider) == "skip"
    assert provider.release(lease)
    for limit in ("BROADCAST_SECONDS", "GRACE_SECONDS"):
        monkeypatch.setattr(quorum_clients, limit, 0.6)  # enough for a busy machine to connect
    monkeypatch.setattr(quorum_clients, "READ_SECONDS", 3.0)  # enough for a busy machine to read
    short = quorum.provider(kind="async")
    block_when_redis_is_asked(monkeypatch, 0.3)  # for each of the three servers
    for blocked in (provider, short):
        lease = acquired(blocked)
        assert all(map(quorum.is_held, range(quorum.size)))
        assert outcome(blocked) == "skip"
        assert blocked.release(lease)
        assert not any(map(quorum.is_held, range(quorum.size)))
