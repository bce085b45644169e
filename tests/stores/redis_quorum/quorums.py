"""A quorum on the test servers. Each quorum has its own key prefix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from shedlock_py import Lease, LockProvider, LockRequest, ProviderUnreachable
from shedlock_py.providers.redis import AsyncRedisQuorumLockProvider, RedisQuorumLockProvider
from shedlock_py.providers.redis.commands import Script, script
from shedlock_py.providers.redis.quorum import quorum_programs as programs
from shedlock_py.testing.blocking import BlockingLockProvider
from shedlock_py.testing.proxy import TcpProxy
from tests.stores.redis_quorum.by_hand import ByHand
from tests.support import locks
from tests.support.database import Address
from tests.support.polling import wait_until
from tests.support.ports import free_port
from tests.support.redis import RedisServer

NAME = "job"


def start_new_quorum(provider: Any) -> None:
    """Call start_new_quorum(), also behind an async provider's facade, which lacks the method."""
    if isinstance(provider, BlockingLockProvider):
        provider.run(provider.async_provider.start_new_quorum())  # type: ignore[attr-defined]  # that of a quorum has it
    else:
        provider.start_new_quorum()


class Quorum:
    """Numbered servers, and the providers on them. :meth:`close` restores everything."""

    def __init__(self, servers: Sequence[RedisServer], *, create: bool = True) -> None:
        self.servers = list(servers)
        self.size = len(self.servers)
        self.majority = self.size // 2 + 1
        self.prefix = f"test-{uuid4().hex[:8]}"
        self.stack = ExitStack()
        self._proxies: list[TcpProxy] = []
        if create:
            start_new_quorum(self.provider())

    @property
    def proxies(self) -> list[TcpProxy]:
        """One proxy before each server."""
        if not self._proxies:
            self._proxies = [self.stack.enter_context(TcpProxy(server.address)) for server in self.servers]
        return self._proxies

    def provider(
        self,
        *,
        kind: str = "sync",
        via_proxies: bool = False,
        without: Sequence[int] = (),
        at: Mapping[int, Address] | None = None,
        **options: Any,
    ) -> LockProvider:
        """Open a provider from URLs, with dead addresses for the servers ``without``. Wrap an async provider in a sync
        facade.

        :param at: other addresses, by number.
        """
        via = dict(enumerate(proxy.address for proxy in self.proxies)) if via_proxies else {}
        via |= {number: ("127.0.0.1", free_port()) for number in without} | dict(at or {})
        urls = [server.url(via=via.get(number)) for number, server in enumerate(self.servers)]
        options = {"key_prefix": self.prefix, **options}
        if kind == "async":
            return self.stack.enter_context(BlockingLockProvider(lambda: AsyncRedisQuorumLockProvider(urls, **options)))
        provider = RedisQuorumLockProvider(urls, **options)
        self.stack.callback(provider.close)
        return provider

    def by_hand(self, *, via_proxies: bool = False) -> ByHand:
        """Open the programs step by step, with a time limit for a busy machine."""
        provider: Any = self.provider(via_proxies=via_proxies, timeout="60s")
        return ByHand(provider)

    def cut_off(self, *numbers: int) -> None:
        """Make only these servers unreachable through their proxies."""
        for number, proxy in enumerate(self.proxies):
            if number in numbers:
                proxy.refuse()
                proxy.cut()
            else:
                proxy.accept()

    # Access past the providers

    def send(self, number: int, *words: str | int) -> Any:
        with self.servers[number].client() as client:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py gives it no types

    def key(self, name: str = NAME) -> str:
        return f"{self.prefix}:{{{name}}}"

    def fields(self, number: int, name: str = NAME) -> dict[str, str]:
        """Return a server's record of a lock name."""
        with self.servers[number].client() as client:
            found: dict[Any, Any] = client.hgetall(self.key(name))
        return {field.decode(): value.decode() for field, value in found.items()}

    def now(self, number: int) -> int:
        with self.servers[number].client() as client:
            seconds, microseconds = client.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    def is_held(self, number: int, name: str = NAME) -> bool:
        return int(self.fields(number, name).get("lock_until", 0)) > self.now(number)

    def wait_until_free(self) -> None:
        """Wait for all servers: an operation waits for a majority, and only briefly for other servers."""
        wait_until(lambda: not any(map(self.is_held, range(self.size))), what="the lock free on all servers")

    def votes(self, number: int) -> bool:
        """Whether this server is known to be out of quarantine."""
        with self.servers[number].client() as client:
            run_id, until = client.hmget(f"{self.prefix}:node", "run_id", "quarantined_until")
            is_same = run_id == str(client.info("server")["run_id"]).encode()
        return is_same and int(until or 0) <= self.now(number)

    def close(self) -> None:
        for server in self.servers:
            server.resume()
            server.start()
        self.stack.close()


def acquired(provider: LockProvider, name: str = NAME, at_most: str = "1m", **options: Any) -> Lease:
    return locks.acquired(provider, name, at_most, **options)


def outcome(provider: LockProvider, name: str = NAME, at_most: str = "1m", **options: Any) -> str:
    """Return an attempt's outcome: "lease", "skip", or the error's text."""
    try:
        lease = provider.acquire(LockRequest(name, at_most, **options))
    except ProviderUnreachable as error:
        return str(error)
    return "skip" if lease is None else "lease"


def leave_out_of_scripts(monkeypatch: pytest.MonkeyPatch, part: bytes, instead: bytes) -> None:
    """For controls: leave a part out of the scripts, to cause the fault that it prevents."""

    def changed(name: str) -> Script:
        found = script(name)
        text = found.text.replace(part, instead)
        return found if text == found.text else replace(found, text=text, sha="0" * 40)

    monkeypatch.setattr(programs, "script", changed)
