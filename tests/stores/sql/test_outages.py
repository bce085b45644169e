"""The server restarts, stops, or stands still: an error within a time limit, and recovery afterwards."""

import re
import threading
import time
from contextlib import ExitStack
from functools import partial

import pytest

from shedlock_py import LockProvider, LockRequest, ProviderUnreachable, attempt
from tests.stores.sql.stores import DRIVERS, Store
from tests.support.database import DatabaseServer
from tests.support.drivers import is_installed
from tests.support.locks import acquired
from tests.support.polling import wait_until

LONGEST = 40.0
"""Seconds, for the application's engines, which have their own limits. test_time_limit.py tests the promised limits."""


class Attempts:
    """One guarded call for each provider, all at once, while the server does not reply."""

    def __init__(self, providers: dict[str, LockProvider], name: str, at_most: str) -> None:
        self.failed: dict[str, BaseException] = {}
        self.seconds: dict[str, float] = {}
        self.ran: list[str] = []
        threads = [
            threading.Thread(target=self._attempt, args=(key, provider, f"{name}-{i}", at_most))
            for i, (key, provider) in enumerate(providers.items())
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + LONGEST
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.hung = set(providers) - set(self.failed) - set(self.ran)

    def _attempt(self, key: str, provider: LockProvider, name: str, at_most: str) -> None:
        started = time.monotonic()
        try:
            attempt(name, lambda: self.ran.append(key), lock_at_most_for=at_most, provider=provider)
        except Exception as error:
            self.failed[key] = error
        self.seconds[key] = round(time.monotonic() - started, 1)

    def assert_all_unreachable(self) -> None:
        assert (self.hung, self.ran) == (set(), [])
        others = {key: error for key, error in self.failed.items() if type(error) is not ProviderUnreachable}
        assert not others
        assert all(error.__cause__ is not None for error in self.failed.values())
        words = r"(?i)timed? ?out|in time|lost connection|refused|can't connect|connect call failed"
        words += "|closed the connection unexpectedly"  # libpq also says so of a port without a listener: seen once
        assert all(re.search(words, str(error)) for error in self.failed.values()), self.failed


def open_stores(stack: ExitStack, servers: dict[str, DatabaseServer]) -> list[Store]:
    """Open a store for each driver that this interpreter has."""
    stores = [Store(servers[product], driver) for driver, product in DRIVERS.items() if is_installed(driver)]
    for store in stores:
        stack.enter_context(store.stack)
    return stores


def open_all(stack: ExitStack, servers: dict[str, DatabaseServer], *, engines: bool = True) -> dict[str, LockProvider]:
    """Open providers with every driver, with a connection in their pools."""
    providers = {}
    for store in open_stores(stack, servers):
        providers[store.driver] = store.provider()
        if engines:
            providers[f"{store.driver} (engine)"] = store.provider_of_engine()
    for provider in providers.values():
        provider.records("warm")
    return providers


@pytest.fixture
def servers(postgres: DatabaseServer, mariadb: DatabaseServer, mysql: DatabaseServer) -> dict[str, DatabaseServer]:
    return {"postgres": postgres, "mariadb": mariadb, "mysql": mysql}


@pytest.mark.slow("stops three servers")
def test_i5_a_restart_and_an_outage(servers: dict[str, DatabaseServer], name: str) -> None:
    with ExitStack() as stack:
        providers = open_all(stack, servers)
        leases = {key: acquired(provider, f"{name}-{i}") for i, (key, provider) in enumerate(providers.items())}
        for server in servers.values():
            server.restart()
        # Pooled connections are dead now, but nobody notices.
        for key, provider in providers.items():
            assert provider.acquire(LockRequest(leases[key].name, "1m")) is None, key
            assert provider.release(leases[key]) is True, key

        try:
            for server in servers.values():
                server.stop()
            for _ in range(2):
                Attempts(providers, name, "1m").assert_all_unreachable()
        finally:  # the next tests need the servers
            for server in servers.values():
                server.start()
        for i, provider in enumerate(providers.values()):
            assert provider.release(acquired(provider, f"{name}-{i}"))


@pytest.mark.slow("waits for the limits of all drivers")
def test_i5_a_server_that_stands_still(servers: dict[str, DatabaseServer], name: str) -> None:
    with ExitStack() as stack:
        warm = open_all(stack, servers, engines=False)
        cold = {f"{store.driver} (cold)": store.provider() for store in open_stores(stack, servers)}
        providers = {**warm, **cold}
        for server in servers.values():
            server.pause()
        try:
            attempts = Attempts(providers, name, "2s")
        finally:
            for server in servers.values():
                server.resume()
        attempts.assert_all_unreachable()
        # The servers' later work has no holder, and expires (I3, I12).
        for i, provider in enumerate(providers.values()):
            wait_until(partial(provider.acquire, LockRequest(f"{name}-{i}", "1m")), timeout=LONGEST)
