"""I13: one ``timeout`` covers all broadcasts of an operation; an absent minority slows nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from shedlock_py import ConfigurationError, Lease, LockRequest, ProviderUnreachable
from shedlock_py.providers.redis.commands import script
from shedlock_py.providers.redis.quorum import broadcast
from shedlock_py.providers.redis.quorum.broadcast import THREADS_PER_SERVER
from shedlock_py.providers.redis.redis_clients import POOL_SIZE, RESERVED
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis_quorum.quorums import Quorum, acquired, outcome
from tests.stores.redis_quorum.test_urls import CLIENTS, KINDS
from tests.support.database import Address
from tests.support.polling import wait_until
from tests.support.ports import black_hole
from tests.support.timing import BUSY, Stopwatch

TIMEOUT = 2.0
LONG, SOON = 30.0, 15.0
"""Seconds that a broadcast waits for a majority here, and half of it: a busy machine is faster."""

FAULTS = {
    "refuses": r"(?i)refused|connect call failed",
    "black-holed": "waited for a connection|no reply within",  # the client's limit or the broadcast's limit comes first
    "silent": "waited for a reply|waited for a connection|no reply within",
    "stopped": "waited for a reply|waited for a connection|no reply within",
}
"""A server's faults, and their error messages."""


@pytest.fixture
def size() -> int:
    return 3


@pytest.fixture
def black_holes() -> Iterator[list[Address]]:
    with black_hole() as first, black_hole() as second:
        yield [first, second]


@contextmanager
def faulty(
    quorum: Quorum, kind: str, fault: str, numbers: Sequence[int], black_holes: list[Address], timeout: float = TIMEOUT
) -> Iterator[Any]:
    """Return a provider that was used before these servers get the fault."""
    if fault == "black-holed":
        # A warm connection to a black hole would be a silent connection.
        yield quorum.provider(kind=kind, timeout=f"{timeout}s", at=dict(zip(numbers, black_holes, strict=False)))
        return
    provider = quorum.provider(kind=kind, timeout=f"{timeout}s", via_proxies=True)
    use(quorum, provider)
    for number in numbers:
        if fault == "refuses":
            quorum.proxies[number].refuse()
            quorum.proxies[number].cut()
        elif fault == "silent":
            quorum.proxies[number].stall()
        else:
            quorum.servers[number].pause()
    yield provider


def use(quorum: Quorum, provider: Any) -> None:
    """Use the provider until all servers agree: an operation waits for a majority, and hardly for other servers."""

    def is_same_everywhere() -> bool:
        holders = {quorum.fields(number, "warm").get("locked_by") for number in range(quorum.size)}
        return len(holders) == 1 and not any(quorum.is_held(number, "warm") for number in range(quorum.size))

    is_warm = False
    while not is_warm:
        assert provider.release(acquired(provider, "warm"))
        with suppress(AssertionError):
            wait_until(is_same_everywhere, timeout=1)
            is_warm = True


def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    assert work() is not False
    return time.monotonic() - began


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[] if fault == "refuses" else pytest.mark.slow("waits for three time limits"))
        for fault in FAULTS
    ],
)
def test_i13_a_majority_that_is_away_is_reported_in_time(
    quorum: Quorum, kind: str, fault: str, black_holes: list[Address]
) -> None:
    lease = acquired(quorum.provider())
    with faulty(quorum, kind, fault, [0, 1], black_holes) as provider:
        operations: list[Callable[[], object]] = [
            lambda: provider.acquire(LockRequest("new", "1m")),
            lambda: provider.extend(lease, "1m"),
            provider.records,
        ]
        for work in operations:
            with Stopwatch() as watch, pytest.raises(ProviderUnreachable, match="2 of 3 servers did not") as caught:
                work()
            assert watch.seconds < TIMEOUT * 1.1 + BUSY
            caught.match(FAULTS[fault])


def each_operation(provider: Any, name: str) -> dict[str, Callable[[], bool]]:
    """Each operation, and whether it succeeded."""
    leases: list[Lease] = []

    def acquire() -> bool:
        leases.append(acquired(provider, name))
        return leases[0].is_trusted()

    def take_over() -> bool:
        leases.append(provider.take_over(LockRequest(name, "1m")))
        return leases[1].is_trusted()

    return {
        "acquire": acquire,
        "skip": lambda: outcome(provider, name) == "skip",
        "extend": lambda: provider.extend(leases[0], "2m") is leases[0] and leases[0].is_trusted(),
        "record": lambda: provider.record(name).locked_by == leases[0].locked_by,
        "records": lambda: name in [record.name for record in provider.records()],
        "release": lambda: provider.release(leases[0]) is True,
        "take_over": take_over,
        "undo": lambda: provider.undo(leases[1]) is True,
        "force_release": lambda: provider.force_release(name) is False,
        "forget_fire_time": lambda: provider.forget_fire_time(name) is False,
        "prune": lambda: provider.prune("1h") == 0,
    }


@pytest.mark.parametrize("fault", FAULTS)
def test_i13_a_minority_that_is_away_slows_nothing(
    quorum: Quorum, kind: str, fault: str, black_holes: list[Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "BROADCAST_SECONDS", LONG)
    with faulty(quorum, kind, fault, [2], black_holes, 2 * LONG) as provider:
        took = {operation: seconds(work) for operation, work in each_operation(provider, "job").items()}
        assert {operation: time for operation, time in took.items() if time > SOON} == {}


def test_i13_the_time_limit_in_a_url(kind: str) -> None:
    provider = KINDS[kind]("redis+quorum://h1,h2,h3/0?timeout=3&fire_time_tolerance=10m&longest_lease=2h")
    assert (provider.programs.timeout, str(provider.programs.fire_time_tolerance)) == (3.0, "0:10:00")
    assert KINDS[kind]("redis+quorum://h1,h2,h3").programs.timeout == 5.0
    assert KINDS[kind](["redis://h1", "redis://h2", "redis://h3"], timeout="1s").programs.timeout == 1.0


def test_i13_clients_of_the_application_keep_their_own_limits(kind: str) -> None:
    clients = [CLIENTS[kind](host=host) for host in ("h1", "h2", "h3")]
    assert KINDS[kind](clients).programs.timeout is None
    with pytest.raises(ConfigurationError, match="timeout= is for providers that are made from a URL"):
        KINDS[kind](clients, timeout="1s")


ENDS = """
import sys, redis
from shedlock_py import LockRequest
from shedlock_py.providers.redis import RedisQuorumLockProvider

ports = [int(port) for port in sys.argv[2:]]
provider = RedisQuorumLockProvider([redis.Redis(port=port) for port in ports], key_prefix=sys.argv[1])
lease = provider.acquire(LockRequest("job", "1m"))
assert lease is not None and provider.extend(lease, "1m") and provider.release(lease)
print("done", flush=True)
"""


@pytest.mark.slow("starts a Python")
def test_a_silent_server_does_not_keep_the_process_from_ending(quorum: Quorum) -> None:
    """The clients would wait forever."""
    quorum.proxies[1].stall()
    ports = [str(address[1]) for address in (proxy.address for proxy in quorum.proxies)]
    command = [sys.executable, "-c", ENDS, quorum.prefix, *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "done\n"
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.slow("a hundred claims wait")
def test_a_heartbeat_waits_for_no_acquire(quorum: Quorum, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some threads and connections are reserved for other operations than claims."""
    monkeypatch.setattr(broadcast, "BROADCAST_SECONDS", 30.0)  # claims wait for longer than a busy machine needs
    acquired(quorum.provider(), "known")  # so the servers know the script's hash
    herd = 3 * THREADS_PER_SERVER
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(herd))  # closed last: once the proxies are gone, no claim waits
        proxies = [stack.enter_context(TcpProxy(server.address)) for server in quorum.servers]
        for proxy in proxies:
            proxy.silence(script("quorum_vote").sha)
        addresses = {number: proxy.address for number, proxy in enumerate(proxies)}
        provider = quorum.provider(kind=kind, at=addresses, timeout="30s")
        lease = provider.take_over(LockRequest("held", "1m"))

        def claim(number: int) -> None:
            with suppress(ProviderUnreachable):
                provider.acquire(LockRequest(f"job-{number}", "1m"))

        claims = [pool.submit(claim, number) for number in range(herd)]
        busy = min(THREADS_PER_SERVER, POOL_SIZE - RESERVED)
        wait_until(
            lambda: all(proxy.silent_connections >= busy for proxy in proxies), what="claims have all that they may"
        )
        assert provider.extend(lease, "2m")
        assert not any(claim.done() for claim in claims), "it waited behind claims"
