"""Long jobs on real servers that stop and come back meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

from shedlock_py import (
    LeaseLost,
    LeaseLostError,
    LockExtended,
    LockProvider,
    LockRequest,
    assert_locked,
    attempt,
    attempt_async,
    current_lease,
    hold,
)
from shedlock_py.testing import RecordingListener
from tests.support.polling import until, wait_until
from tests.support.stores import ONE_SERVER, Store

pytestmark = pytest.mark.not_quick("pauses the server of each store")

LEASE = 2.5
STORES = ONE_SERVER  # a quorum survives when one server hangs
IN_MAKE_TEST = ("postgres", "redis", "etcd")
LATER = ("dynamodb", "etcd", "s3")
LIKE_KUBERNETES = "Kubernetes shows it for stores that take the time from replies"
LOOP = "the event loop cancels, whatever the store"


class Opened:
    """A provider, and its store with a server that a test pauses."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.server = store.servers[0]
        self.provider: Any = store.open()
        # the first request opens the client, which on a busy machine takes longer than a lease
        self.provider.record("any")

    def close(self) -> None:
        self.server.resume()
        self.provider.close()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, make_store: Callable[..., Store]) -> Iterator[Opened]:
    with closing(Opened(make_store(request.param))) as store:
        yield store


@pytest.fixture
def stores(make_store: Callable[..., Store]) -> Iterator[list[Opened]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Opened(make_store(name)))) for name in STORES]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"long-{time.monotonic_ns()}"


def work(lock: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert_locked(lock)
        time.sleep(0.01)


def trusted_for() -> float:
    """Return the seconds of trust left in the current lease."""
    lease = current_lease()
    assert lease is not None
    return lease.trusted_for().total_seconds()


def is_held(provider: LockProvider, name: str) -> bool:
    record = provider.record(name)
    return record is not None and record.is_held


@pytest.mark.slow("keeps leases alive for twenty seconds")
def test_a_job_of_six_leases_with_the_store_away_in_the_middle(
    stores: list[Opened], name: str, recorded: RecordingListener
) -> None:
    lease = 3.0  # seconds; a machine that stops for one second loses nothing

    def run(store: Opened) -> object:
        def job() -> str:
            work(name, 3 * lease)
            wait_until(lambda: trusted_for() > 0.85 * lease)
            store.server.pause()
            while trusted_for() > 0.5 * lease:  # the heartbeat at two thirds fails
                assert_locked(name)
                time.sleep(0.01)
            store.server.resume()
            work(name, 2.5 * lease)
            return "done"

        try:
            return attempt(name, job, lock_at_most_for=lease, keep_alive=True, provider=store.provider)
        except Exception as error:
            error.add_note(f"on {store.provider}")
            raise

    with ThreadPoolExecutor(len(stores)) as threads:  # twenty seconds each, at the same time
        results = list(threads.map(run, stores))
    assert [getattr(result, "value", result) for result in results] == ["done"] * len(stores)
    assert not recorded.of(LeaseLost)
    assert not any(is_held(store.provider, name) for store in stores)


@pytest.mark.parametrize(
    "store",
    [pytest.param(name, marks=pytest.mark.slow(LIKE_KUBERNETES)) if name in LATER else name for name in STORES],
    indirect=True,
)
def test_i6_a_store_that_is_away_for_two_leases(store: Opened, name: str, recorded: RecordingListener) -> None:
    lost: list[LeaseLost] = []
    with hold(name, lock_at_most_for=LEASE, keep_alive=True, on_lost=lost.append, provider=store.provider) as lease:
        assert lease is not None
        wait_until(lambda: recorded.of(LockExtended), what="a heartbeat")
        store.server.pause()
        paused_at = time.monotonic()
        wait_until(lambda: lost, what="the report, while the store does not reply")
        assert not lease.is_trusted()
        wait_until(lambda: time.monotonic() > paused_at + 2 * LEASE)
        store.server.resume()
        wait_until(lambda: store.provider.acquire(LockRequest(name, "1m")) is not None, timeout=20)
        assert not lease.is_trusted()
    assert [event.reason for event in recorded.of(LeaseLost)] == ["unreachable"]
    assert is_held(store.provider, name)


@pytest.mark.parametrize(
    "store",
    [name if name in IN_MAKE_TEST else pytest.param(name, marks=pytest.mark.slow(LOOP)) for name in STORES],
    indirect=True,
)
async def test_an_async_job_is_cancelled_while_its_store_does_not_reply(
    store: Opened, name: str, recorded: RecordingListener
) -> None:
    provider: Any = store.store.open_async()
    await provider.record("any")  # see Opened

    async def job() -> None:
        await until(lambda: recorded.of(LockExtended))
        store.server.pause()
        try:
            await asyncio.Event().wait()
        finally:
            lease = current_lease()
            assert lease is None or not lease.is_trusted()
            store.server.resume()

    with pytest.raises(LeaseLostError):
        await attempt_async(name, job, lock_at_most_for=LEASE, keep_alive=True, on_lost="cancel", provider=provider)
    assert [event.reason for event in recorded.of(LeaseLost)] == ["unreachable"]
    await provider.close()
