"""MongoDB for the contract: a collection for each class of tests."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from bson import SON
from bson.codec_options import TypeRegistry
from pymongo import AsyncMongoClient, MongoClient

from shedlock_py.providers.mongodb import MongoLockProvider
from shedlock_py.testing.contract import BlockingLockProvider
from shedlock_py.testing.proxy import Address
from tests.contract.stores import ContractStore, StallingStore, StoreContract
from tests.support.mongodb import MongoServer
from tests.support.ports import free_port

HOSTILE: dict[str, Any] = {
    "w": 0,
    "readPreference": "secondary",
    "readConcernLevel": "available",
    "tz_aware": False,
    "document_class": SON,
    "type_registry": TypeRegistry(fallback_encoder=str),
    "unicode_decode_error_handler": "replace",
    # With one pooled connection, code that keeps a connection while it waits for another hangs.
    "maxPoolSize": 1,
}
# For proxies that lose replies; tests/stores/mongodb/test_outages.py has a client with its own retries.
WITHOUT_RETRIES = {"retryWrites": False, "retryReads": False}


class MongoStore(StallingStore):
    """A collection. ``via_proxy``: a proxy that can stall."""

    def __init__(self, server: MongoServer, kind: Any, *, users_client: bool, via_proxy: bool, history: int) -> None:
        self._server = server
        self._users_client = users_client
        # Long limits: the server is a Python program, and shares a machine with the tests.
        url = server.url("contract", timeout="20s")
        super().__init__(
            kind,
            url,
            {"collection": f"shedlock_{uuid4().hex[:8]}", "history": history},
            server.address,
            via_proxy=via_proxy,
        )
        self._admin = self._resources.enter_context(server.connect())
        self.provider(0).create_schema()

    def maker(self, via: Address | None) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
        address = self.through(via)
        if not self._users_client:
            return partial(self.kind, self._server.url("contract", via=address, timeout="20s"), **self.options), None
        make: Any = AsyncMongoClient if self.is_async else MongoClient
        options = HOSTILE | WITHOUT_RETRIES if via else HOSTILE
        client = make(self._server.url("contract", via=address, timeoutMS=20_000), **options)
        return partial(self.kind, client["contract"], **self.options), client.close

    def delete(self, name: str) -> None:
        self._admin["contract"][self.options["collection"]].delete_one({"_id": name})

    def close(self) -> None:
        self._admin["contract"][self.options["collection"]].drop()
        super().close()
        if self.is_async:
            forget_sockets()


def forget_sockets() -> None:
    """Collect sockets: at its close, PyMongo's async client loses the socket of an unfinished connect."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # here, not in another test


@pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")  # see forget_sockets()
class MongoContract(StoreContract):
    kind: ClassVar[Any] = MongoLockProvider
    via_proxy: ClassVar[bool] = False
    history: ClassVar[int] = 0
    clock_resolution: ClassVar[float] = 0.002

    @classmethod
    def open_store(cls, request: pytest.FixtureRequest) -> MongoStore:
        server: MongoServer = request.getfixturevalue("mongodb_server")
        return MongoStore(server, cls.kind, users_client=cls.users_client, via_proxy=cls.via_proxy, history=cls.history)

    @pytest.fixture
    def unreachable(self) -> str:
        return f"mongodb://127.0.0.1:{free_port()}/shedlock?timeout=300ms"

    @pytest.fixture
    def make_history_provider(self, store: ContractStore) -> Iterator[Callable[[Any], Any]]:
        with ExitStack() as resources:

            def make(history: Any) -> Any:
                factory = partial(store.kind, store.place, **store.options | {"history": history})
                provider: Any = BlockingLockProvider(factory) if store.is_async else factory()
                return resources.enter_context(provider if store.is_async else closing(provider))

            yield make
