"""Redis for the contract: a key prefix for each class of tests, on a server, a cluster or a quorum."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from shedlock_py.testing.proxy import Address
from tests.contract.stores import ContractStore, StoreContract
from tests.support.ports import free_port


class RedisStore(ContractStore):
    """Lock records under a key prefix.

    :param from_url: makes an application's client, or None if providers get the URL.
    """

    def __init__(
        self, servers: Sequence[Any], kind: Any, place: Any, options: dict[str, Any], from_url: Any = None
    ) -> None:
        self.servers = servers
        self._from_url = from_url
        super().__init__(kind, place, {"key_prefix": f"test-{uuid4().hex[:8]}", **options})
        if len(servers) > 1:
            provider: Any = self.provider(0)
            if self.is_async:
                provider.run(provider.async_provider.start_new_quorum())
            else:
                provider.start_new_quorum()

    @property
    def address(self) -> Address:
        address: Address = self.servers[0].address
        return address

    def maker(self, via: Address | None) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
        place = self.place if via is None else self.servers[0].url(via=via)
        if self._from_url is None:
            return partial(self.kind, place, **self.options), None
        client = self._from_url(place)
        return partial(self.kind, client, **self.options), client.aclose if self.is_async else client.close

    def delete(self, name: str) -> None:
        for server in self.servers:
            with server.client() as client:
                client.delete(f"{self.options['key_prefix']}:{{{name}}}")

    @contextmanager
    def stalled(self, name: str) -> Iterator[None]:
        """Make the server hold back writes of this name."""
        with ExitStack() as stack:
            for server in self.servers:
                client = stack.enter_context(server.client())
                client.execute_command("CLIENT PAUSE", 60_000, "WRITE")
                stack.callback(client.execute_command, "CLIENT UNPAUSE")
            yield

    def close(self) -> None:
        super().close()
        for server in self.servers:
            with server.client() as client:
                for key in client.scan_iter(match=f"{self.options['key_prefix']}:*", count=1000):
                    client.delete(key)


class RedisContract(StoreContract):
    """On one server."""

    kind: ClassVar[Any]
    from_url: ClassVar[Callable[..., Any] | None] = None
    """Makes an application's client, or None if providers get the URL."""
    client_options: ClassVar[dict[str, Any]] = {}

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> RedisStore:
        server = request.getfixturevalue("redis_server")
        return RedisStore([server], cls.kind, server.url(), {}, cls.make_client())

    @classmethod
    def make_client(cls) -> Any:
        return cls.from_url and partial(cls.from_url, **cls.client_options)

    @pytest.fixture
    def unreachable(self) -> Any:
        return f"redis://127.0.0.1:{free_port()}"

    @pytest.fixture
    def make_history_provider(self, store: RedisStore) -> Iterator[Callable[[Any], Any]]:
        with ExitStack() as resources:

            def make(history: Any) -> Any:
                keeper = copy(store)
                keeper.options = {**store.options, "history": history}
                return keeper.open(resources)

            yield make
