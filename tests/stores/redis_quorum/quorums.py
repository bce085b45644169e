"""A quorum on the test servers, with a key prefix that no other test uses."""

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
    """Also behind the facade of an async provider, which does not have it."""
    if isinstance(provider, BlockingLockProvider):
        provider.run(provider.async_provider.start_new_quorum())  # type: ignore[attr-defined]  # that of a quorum has it
    else:
        provider.start_new_quorum()


class Quorum:
    """Servers, by number, and the providers that are opened on them; all is put right again by :meth:`close`."""

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
        """One before each server."""
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
        """From URLs; for the servers ``without`` they lead nowhere. An async one is presented as a sync one.

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
        """The programs, carried out step by step, in as much time as a busy machine needs."""
        provider: Any = self.provider(via_proxies=via_proxies, timeout="60s")
        return ByHand(provider)

    def cut_off(self, *numbers: int) -> None:
        """These servers, and no others, cannot be reached through their proxies."""
        for number, proxy in enumerate(self.proxies):
            if number in numbers:
                proxy.refuse()
                proxy.cut()
            else:
                proxy.accept()

    # Past the providers

    def send(self, number: int, *words: str | int) -> Any:
        with self.servers[number].client() as client:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py gives it no types

    def key(self, name: str = NAME) -> str:
        return f"{self.prefix}:{{{name}}}"

    def fields(self, number: int, name: str = NAME) -> dict[str, str]:
        """What one server has on a lock name."""
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
        """On all servers: an operation waits for a majority, and only for a moment for the others."""
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
    """What an attempt comes to: "lease", "skip", or why it is impossible."""
    try:
        lease = provider.acquire(LockRequest(name, at_most, **options))
    except ProviderUnreachable as error:
        return str(error)
    return "skip" if lease is None else "lease"


def leave_out_of_scripts(monkeypatch: pytest.MonkeyPatch, part: bytes, instead: bytes) -> None:
    """For controls: a fault that this part of a script prevents."""

    def changed(name: str) -> Script:
        found = script(name)
        text = found.text.replace(part, instead)
        return found if text == found.text else replace(found, text=text, sha="0" * 40)

    monkeypatch.setattr(programs, "script", changed)
