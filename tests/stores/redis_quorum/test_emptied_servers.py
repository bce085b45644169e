"""An emptied or restarted server may have forgotten a lease: it does not vote for ``longest_lease``."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from uuid import uuid4

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.redis import RedisQuorumLockProvider
from tests.stores.redis_quorum.conftest import MakeQuorum
from tests.stores.redis_quorum.quorums import NAME, Quorum, acquired, leave_out_of_scripts, outcome, start_new_quorum
from tests.support import tiers
from tests.support.availability import private_server
from tests.support.polling import wait_until
from tests.support.redis import RedisServer
from tests.support.workers import workers

pytestmark = pytest.mark.usefixtures("long_grace")

REPEATS = 6 if tiers.runs("full") else 2


@pytest.fixture
def size() -> int:
    return 3


def restart(quorum: Quorum, number: int) -> None:
    quorum.servers[number].kill()
    quorum.servers[number].start()


def flush(quorum: Quorum, number: int) -> None:
    quorum.send(number, "FLUSHALL")


def second_claim(make_quorum: MakeQuorum, empty: str, kind: str) -> tuple[LockProvider, str]:
    """Let server 1 forget a lease on servers 0 and 1, and claim on 1 and 2."""
    quorum = make_quorum()
    quorum.cut_off(2)
    acquired(quorum.provider(kind=kind, via_proxies=True))
    {"restart": restart, "flush": flush}[empty](quorum, 1)
    claimant = quorum.provider(kind=kind, without=[0])
    return claimant, outcome(claimant)


@pytest.mark.parametrize("empty", ["restart", "flush"])
def test_i1_a_forgotten_lease_is_not_given_away(make_quorum: MakeQuorum, empty: str) -> None:
    for number in range(REPEATS):
        claimant, result = second_claim(make_quorum, empty, "async" if number % 2 else "sync")
        assert "1 of 3 are in quarantine for" in result
        assert "1 of 3 servers did not reply" in result
        assert outcome(claimant) not in ("lease", "skip"), "the quarantine must outlast the first vote"


@pytest.mark.parametrize("empty", ["restart", "flush"])
def test_i1_without_the_quarantine_a_forgotten_lease_would_be_given_away(
    make_quorum: MakeQuorum, monkeypatch: pytest.MonkeyPatch, empty: str
) -> None:
    """The control."""
    leave_out_of_scripts(monkeypatch, b"if quarantined_until > now then", b"if false then")
    for number in range(2):
        _, result = second_claim(make_quorum, empty, "async" if number % 2 else "sync")
        assert result == "lease"


def test_a_server_that_keeps_its_data_is_quarantined_all_the_same(redis_nodes: list[RedisServer]) -> None:
    """It may have lost its last second. Its remaining data counts."""
    with private_server("redis", lambda: RedisServer(appendonly=True)) as server:
        quorum = Quorum([redis_nodes[0], server, redis_nodes[2]])
        quorum.cut_off(2)
        holder = quorum.provider(via_proxies=True)
        lease = acquired(holder)
        restart(quorum, 1)
        claimant = quorum.provider(without=[0])
        assert quorum.is_held(1)
        assert outcome(claimant) == "skip"
        assert holder.extend(lease, "2m") is lease
        assert holder.release(lease)
        assert "1 of 3 are in quarantine for" in outcome(claimant)
        assert outcome(quorum.provider()) == "lease", "the other two go on"
        quorum.close()


@pytest.mark.slow("restarts a server twice and waits for leases")
def test_it_votes_again_after_the_longest_lease_since_its_last_restart(quorum: Quorum, kind: str) -> None:
    claimant = quorum.provider(kind=kind, longest_lease="1s", without=[0])

    def has_a_lease(name: str) -> bool:
        return outcome(claimant, name, "1s") == "lease"

    for name in ("first", "second"):
        restart(quorum, 1)
        started = quorum.now(1)
        assert "in quarantine for" in outcome(claimant, name, "1s")
        until = int(quorum.send(1, "HGET", f"{quorum.prefix}:node", "quarantined_until"))
        assert until >= started + 1_000_000
        wait_until(partial(has_a_lease, name), what="a lease after the quarantine")
        assert quorum.votes(1)
        assert quorum.now(1) >= until


def test_a_lease_is_not_confirmed_by_a_server_that_forgot_its_vote(quorum: Quorum) -> None:
    """The server is emptied between the two broadcasts."""
    quorum.cut_off(2)
    hand = quorum.by_hand(via_proxies=True)
    program, votes = hand.votes(LockRequest(NAME, "1m"), range(3))
    flush(quorum, 1)
    confirmations = hand.on(range(3), program.send(votes))
    assert confirmations[:2] == [1, 0]
    hand.undo(program.send(confirmations))
    program.close()
    assert not any(map(quorum.is_held, range(3)))


# start_new_quorum()


def test_a_new_quorum_votes_after_start_new_quorum_only(make_quorum: MakeQuorum, kind: str) -> None:
    quorum = make_quorum(create=False)
    provider = quorum.provider(kind=kind)
    first = outcome(provider)
    assert "3 of 3 are in quarantine for 1:00:00 or longer" in first or "0:59:59" in first
    assert "call start_new_quorum() once" in first
    assert provider.record(NAME) is None
    start_new_quorum(provider)  # although the servers have put themselves in quarantine
    assert outcome(provider) == "lease"
    assert all(map(quorum.votes, range(3)))


@pytest.mark.slow("waits for a server that restarts, four times")
def test_start_new_quorum_leaves_an_emptied_server_in_quarantine(quorum: Quorum, kind: str) -> None:
    for empty in (restart, flush):
        empty(quorum, 1)
        provider = quorum.provider(kind=kind)
        for _ in range(2):
            with pytest.raises(ProviderError, match="2 of 3 servers have voted before, the others not"):
                start_new_quorum(provider)
            assert not quorum.votes(1)
        assert "1 of 3 are in quarantine" in outcome(quorum.provider(kind=kind, without=[0]), empty.__name__)
        assert outcome(provider, empty.__name__) == "lease"


def test_start_new_quorum_with_a_server_down_is_refused(make_quorum: MakeQuorum, kind: str) -> None:
    new = make_quorum(create=False)
    with pytest.raises(ProviderUnreachable, match="a new quorum needs all its servers once"):
        start_new_quorum(new.provider(kind=kind, without=[2]))
    assert not any(new.send(number, "EXISTS", f"{new.prefix}:node") for number in range(3))
    start_new_quorum(new.provider(kind=kind))
    used = new.provider(kind=kind, without=[2])
    start_new_quorum(used)  # does nothing
    assert outcome(used) == "lease"


def test_start_new_quorum_leaves_a_server_that_restarts_in_quarantine(make_quorum: MakeQuorum) -> None:
    """It may have joined and granted since it was read."""
    quorum = make_quorum(create=False)
    hand = quorum.by_hand()
    program = hand.programs.start_new_quorum()
    join = program.send(hand.on(range(3), next(program)))
    restart(quorum, 1)
    with pytest.raises(StopIteration):
        program.send(hand.on(range(3), join))
    assert [bool(quorum.send(number, "EXISTS", f"{quorum.prefix}:node")) for number in range(3)] == [True, False, True]
    assert outcome(quorum.provider()) == "lease"
    assert not quorum.votes(1)


def test_start_new_quorum_refuses_the_same_server_under_two_names(redis_nodes: list[RedisServer]) -> None:
    first, second = redis_nodes[:2]
    urls = [first.url(), second.url(), f"redis://localhost:{first.address[1]}/0"]
    with (
        closing(RedisQuorumLockProvider(urls, key_prefix="test-same")) as provider,
        pytest.raises(ProviderError, match="some of these servers are the same"),
    ):
        provider.start_new_quorum()


def test_one_server_under_three_names_is_no_quorum(redis_nodes: list[RedisServer]) -> None:
    """Its one vote must not count three times, even without start_new_quorum()."""
    host, port = redis_nodes[0].address
    urls = [f"redis://{name}:{port}" for name in (host, "localhost", "127.0.0.2")]
    provider = RedisQuorumLockProvider(urls, key_prefix=f"test-{uuid4().hex[:8]}", longest_lease="3ms")

    def refusal() -> str:
        """Return the error's text. The provider first reports a quarantine. A late vote causes a skip for three
        seconds."""
        try:
            assert provider.acquire(LockRequest(NAME, "3ms")) is None
        except ProviderError as error:
            return str(error)
        return ""

    with closing(provider):
        wait_until(lambda: "the same server" in refusal(), what="refused because it is one server")


@pytest.mark.slow("ten processes")
def test_ten_processes_start_one_new_quorum_at_once(make_quorum: MakeQuorum) -> None:
    with workers() as call_all:
        for attempt in range(2):
            quorum = make_quorum(create=False)
            urls = [server.url() for server in quorum.servers]
            assert call_all(create_and_acquire, urls, quorum.prefix) == ["lease"] * 10, attempt
            flush(quorum, 1)
            call_all(create_and_acquire, urls, quorum.prefix)
            assert not quorum.votes(1)


def create_and_acquire(urls: list[str], prefix: str) -> str:
    provider = RedisQuorumLockProvider(urls, key_prefix=prefix)
    try:
        start_new_quorum(provider)
        return outcome(provider, f"job-{os.getpid()}")
    finally:
        provider.close()
