"""One Redis through one kind of client. Each test closes its clients and providers at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import AbstractBackoff, NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from shedlock_py import AsyncLockProvider, LockProvider
from shedlock_py.providers.redis import AsyncRedisLockProvider, RedisLockProvider
from shedlock_py.testing.blocking import BlockingLockProvider
from tests.support.database import Address
from tests.support.redis import RedisEndpoint

# From a URL; a user-supplied client without retries; and a client with redis-py's default of ten retries.
SYNC_KINDS = ("url", "once", "retries")
ASYNC_KINDS = tuple(f"async {kind}" for kind in SYNC_KINDS)
KINDS = (*SYNC_KINDS, *ASYNC_KINDS)
# For tests where the kind of client makes no difference.
URL_KINDS = ("url", "async url")

TRIES = 11


def marks_of(kind: str, kinds: Sequence[str], *, programs: bool = False) -> list[pytest.MarkDecorator]:
    """Marks that keep a test with this kind of client out of ``make test``, if the test runs with all these kinds.

    :param programs: the test covers only programs, which sync and async clients share.
    """
    if programs and kind.removeprefix("async ") != kind and kind.removeprefix("async ") in kinds:
        return [pytest.mark.matrix("the sync provider runs the same program")]
    if kind.endswith(("once", "retries")) and kind.replace("once", "url").replace("retries", "url") in kinds:
        return [pytest.mark.slow("a user-supplied client, which makes no difference here")]
    return []


def through(*kinds: str, programs: bool = False) -> pytest.MarkDecorator:
    """Parametrize a test with kinds of clients, each with its tier's mark."""
    params = [pytest.param(kind, marks=marks_of(kind, kinds, programs=programs)) for kind in kinds]
    return pytest.mark.parametrize("kind", params)


@dataclass
class Store:
    server: RedisEndpoint
    kind: str = "url"
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def is_async(self) -> bool:
        return self.kind.startswith("async ")

    @property
    def is_managed(self) -> bool:
        """Whether providers open their own connections."""
        return self.kind.endswith("url")

    def provider(
        self,
        via: Address | None = None,
        *,
        url: str | None = None,
        key_prefix: str = "shedlock",
        history: int = 0,
        **options: Any,
    ) -> LockProvider:
        """Wrap an async provider in a sync facade. `options` belong to a user-supplied client."""
        address = url or self.server.url(via=via)
        if self.is_managed:
            return self.provider_of(address, key_prefix=key_prefix, history=history)
        return self.provider_of(lambda: self._user_supplied(address, options), key_prefix=key_prefix, history=history)

    def provider_of(
        self, client_or_url: Callable[[], Any] | str, *, key_prefix: str = "shedlock", history: int = 0
    ) -> LockProvider:
        """Open a provider from a URL, or on a client that is made in its event loop and closed at the end."""
        if not self.is_async:
            given = client_or_url if isinstance(client_or_url, str) else client_or_url()
            provider = RedisLockProvider(given, key_prefix=key_prefix, history=history)
            self.stack.callback(provider.close if isinstance(given, str) else given.close)
            return provider
        if isinstance(client_or_url, str):
            return self.blocking(lambda: AsyncRedisLockProvider(client_or_url, key_prefix=key_prefix, history=history))
        clients: list[Any] = []

        def make() -> AsyncLockProvider:
            clients.append(client_or_url())
            return AsyncRedisLockProvider(clients[0], key_prefix=key_prefix, history=history)

        blocking = self.blocking(make)
        self.stack.callback(lambda: blocking.run(clients[0].aclose()))
        return blocking

    def blocking(self, make: Callable[[], AsyncLockProvider]) -> BlockingLockProvider:
        return self.stack.enter_context(BlockingLockProvider(make))

    def retry(self, times: int, backoff: AbstractBackoff | None = None) -> Any:
        """redis-py's retry: that many times, without pauses."""
        return (AsyncRetry if self.is_async else Retry)(backoff or NoBackoff(), times)

    def _user_supplied(self, url: str, options: dict[str, Any]) -> Any:
        if self.kind.endswith("once"):
            options = {"retry": self.retry(0), **options}
        client_class: Any = redis.asyncio.Redis if self.is_async else redis.Redis
        return client_class(**parse_url(url), **options)  # type: ignore[no-untyped-call]  # redis-py gives it no types


def send(client: redis.Redis, *words: str | int | bytes) -> Any:
    """Return the reply to a command, as redis-py parses it."""
    return client.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py gives it no types
