"""The server restarts, stops, stands still or steps down: an error within a time limit, and recovery afterwards."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from shedlock_py import LockProvider, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.clients import both_clients, both_clients_in_full
from tests.stores.mongodb.stores import SLOW_SERVER, Store
from tests.support.locks import acquired, record_of
from tests.support.polling import wait_until
from tests.support.signals import TooLong, raised_by
from tests.support.timing import BUSY, Stopwatch

LIMIT = 2.0
"""Seconds: the time limit of one operation, with everything included."""


def refused(provider: LockProvider, name: str) -> ProviderUnreachable:
    with Stopwatch() as stopwatch, pytest.raises(ProviderUnreachable) as unreachable:
        provider.acquire(LockRequest(name, "2s"))
    assert stopwatch.seconds < LIMIT * 1.1 + BUSY
    assert (unreachable.value.operation, unreachable.value.lock_name) == ("acquire", name)
    assert unreachable.value.__cause__ is not None
    return unreachable.value


@both_clients
@pytest.mark.slow("restarts the server")
def test_i5_a_restart_is_not_noticed_and_an_outage_is_an_error(store: Store, name: str) -> None:
    provider = store.provider(timeout=f"{LIMIT:g}s")
    lease = acquired(provider, name)
    store.server.restart()
    # Pooled connections are dead now, but the caller does not notice.
    assert provider.acquire(LockRequest(name, "1m")) is None
    assert provider.release(lease) is True
    store.server.kill()
    for _ in range(2):
        refused(provider, name)
    store.server.start()
    # Another name: the killed test server loses its last writes. MongoDB's journal keeps them.
    assert provider.release(acquired(provider, f"{name}-2"))


@both_clients
@pytest.mark.slow("waits for time limits; the contract stalls the store")
def test_i13_a_server_that_stands_still(store: Store, name: str) -> None:
    warm, cold = (store.provider(timeout=f"{LIMIT:g}s") for _ in range(2))
    lease = acquired(warm, f"{name}-held")
    store.server.pause()
    try:
        assert "waited for a reply" in str(refused(warm, name))
        assert f"limit of {LIMIT:g} s (timeout)" in str(refused(cold, name))
        with pytest.raises(ProviderUnreachable):
            warm.extend(lease, "2m")
    finally:
        store.server.resume()
    # A later grant by the server has no holder, and expires (I3, I12).
    for provider in (warm, cold):
        wait_until(lambda: provider.acquire(LockRequest(name, "3ms")), what="free again")  # noqa: B023 (called at once)
    assert warm.release(lease)


@both_clients_in_full
def test_i13_a_refused_connection_is_an_error_that_names_the_address(store: Store, proxy: TcpProxy, name: str) -> None:
    provider = store.provider(proxy.address, timeout=f"{LIMIT:g}s")
    provider.record("warm")
    proxy.refuse()
    proxy.cut()
    assert f"{proxy.address[0]}:{proxy.address[1]}: [Errno 111] Connect" in str(refused(provider, name))
    proxy.accept()
    assert provider.release(acquired(provider, name))


@both_clients_in_full
def test_i13_the_time_limits_of_the_url_win(store: Store, proxy: TcpProxy, name: str) -> None:
    proxy.refuse()
    limits: list[dict[str, Any]] = [{"serverSelectionTimeoutMS": 200}, {"timeoutMS": 200}]
    for options in limits:
        provider = store.provider(proxy.address, **options)
        with Stopwatch() as stopwatch, pytest.raises(ProviderUnreachable):
            provider.acquire(LockRequest(name, "1m"))
        assert stopwatch.seconds < LIMIT


@both_clients_in_full
def test_i5_without_a_primary_an_operation_is_an_error(store: Store, name: str) -> None:
    provider = store.provider(timeout=f"{LIMIT:g}s")
    lease = acquired(provider, name)
    with suppress(AutoReconnect):  # a real server closes all connections
        store.admin.admin.command("replSetStepDown", 6, secondaryCatchUpPeriodSecs=1, force=True)
    refused(provider, f"{name}-2")
    with pytest.raises(ProviderUnreachable):
        provider.release(lease)
    assert not lease.is_trusted()
    wait_until(lambda: store.admin.admin.command("hello")["isWritablePrimary"], timeout=60, what="a primary")
    assert provider.release(lease) is True


# Lost replies where PyMongo retries; the contract tests retries by the provider


@both_clients_in_full
@pytest.mark.parametrize(  # PyMongo sends each of the provider's two copies twice
    "losses", [2, pytest.param(1, marks=pytest.mark.slow("two losses show the same and more"))]
)
def test_i12_copies_that_a_client_sends_by_itself_do_no_harm(
    store: Store, proxy: TcpProxy, name: str, losses: int
) -> None:
    provider = store.provider_of_client(proxy.address, retryWrites=True, retryReads=True)
    provider.record("warm")
    proxy.drop_replies_to(name, losses)
    lease = acquired(provider, name)
    assert proxy.drops_left == 0
    record = record_of(provider, name)
    assert (record.locked_by, record.fencing_token) == (lease.locked_by, lease.fencing_token)
    proxy.drop_replies_to(name, losses)
    assert provider.extend(lease, "10m") is lease
    assert record_of(provider, name).remaining.total_seconds() > 500
    proxy.drop_replies_to(name, losses)
    assert provider.release(lease) is True
    assert proxy.drops_left == 0
    assert provider.release(acquired(provider, name))
    assert provider.acquire(LockRequest(name, "1m")) is not None


# Errors that the server replies with


def test_i1_a_write_that_no_majority_confirms_is_an_error_and_undone(store: Store, name: str) -> None:
    provider = store.provider(**SLOW_SERVER)
    unconfirmed: dict[str, Any] = {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}}
    for _ in range(2):  # a new record, and an old one
        with store.server.failing(["findAndModify"], **unconfirmed), pytest.raises(ProviderUnreachable) as error:
            provider.acquire(LockRequest(name, "1m"))
        assert "waiting for replication timed out" in str(error.value)
        assert not record_of(provider, name).is_held
    # The error is the same if only the second half of a first acquire is in doubt.
    with (
        store.server.failing(["findAndModify"], times=2, **unconfirmed),
        pytest.raises(ProviderUnreachable),
    ):
        provider.acquire(LockRequest(f"{name}-2", "1m"))
    lease = acquired(provider, name)
    with store.server.failing(["update"], **unconfirmed), pytest.raises(ProviderUnreachable):
        provider.extend(lease, "10m")
    assert lease.trusted_for().total_seconds() <= 60
    with store.server.failing(["update"], **unconfirmed), pytest.raises(ProviderUnreachable):
        provider.release(lease)


CODES: list[tuple[int, type[ProviderError], str]] = [
    (13, ProviderError, ""),  # unauthorized
    (8000, ProviderError, ""),
    (14, ProviderError, "no lock record"),
    (241, ProviderError, "no lock record"),
    (50, ProviderUnreachable, ""),  # timeouts
    (262, ProviderUnreachable, ""),
    (11601, ProviderUnreachable, ""),  # killed
    (14031, ProviderUnreachable, ""),  # the disk is full
    (371, ProviderUnreachable, ""),  # writes are blocked
]


def test_i5_an_error_code_is_an_outage_or_a_refusal(store: Store) -> None:
    provider = store.provider(**SLOW_SERVER)
    for code, kind, words in CODES:
        name = f"job-{code}"
        with store.server.failing(["findAndModify"], errorCode=code), pytest.raises(kind) as error:
            provider.acquire(LockRequest(name, "1m"))
        assert type(error.value) is kind
        assert str(error.value).startswith(f"acquire of lock {name!r}: ")
        assert words in str(error.value)
        assert "full error" not in str(error.value)
        acquired(provider, name)


def test_a_server_that_shuts_down_or_is_no_primary_gets_the_request_again(store: Store) -> None:
    provider = store.provider(**SLOW_SERVER, heartbeatFrequencyMS=500)  # the server would report no change
    for code in (91, 10107, 11602, 189):
        with store.server.failing(["findAndModify"], errorCode=code):
            lease = acquired(provider, f"job-{code}")
        with store.server.failing(["update"], errorCode=code):
            assert provider.release(lease) is True


def test_a_concurrent_write_is_no_error(store: Store, name: str) -> None:
    provider = store.provider(**SLOW_SERVER)
    with store.server.failing(["findAndModify"], times=3, errorCode=112):
        acquired(provider, name)


@pytest.fixture
def _alarm() -> Iterator[None]:
    with raised_by(signal.SIGUSR1, TooLong):
        yield


@pytest.mark.usefixtures("_alarm")
def test_i12_an_exception_of_a_signal_handler_is_raised_as_it_is_and_the_lock_undone(store: Store, name: str) -> None:
    proxy = store.stack.enter_context(TcpProxy(store.server.address))
    provider = store.provider(proxy.address, **SLOW_SERVER)
    assert provider.release(acquired(provider, name))
    proxy.silence()

    def interrupt() -> None:
        wait_until(lambda: record_of(observer, name).is_held, what="the lock taken")
        os.kill(os.getpid(), signal.SIGUSR1)

    observer = store.provider(**SLOW_SERVER)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(TooLong):
        provider.acquire(LockRequest(name, "1m"))
    thread.join()
    assert not record_of(observer, name).is_held
