"""The client's defaults do not change the commands, or the handling of their replies."""

from contextlib import nullcontext
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient, timeout
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from shedlock_py import LockProvider, LockRequest
from shedlock_py.providers.mongodb import AsyncMongoLockProvider, MongoLockProvider
from tests.contract.mongo import HOSTILE
from tests.stores.clients import both_clients_in_full
from tests.stores.mongodb.stores import DATABASE, Store
from tests.support.locks import acquired, record_of


class Commands(CommandListener):
    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name in ("findAndModify", "update", "delete", "aggregate"):
            self.commands.append(dict(event.command))

    def succeeded(self, event: CommandSucceededEvent) -> None: ...

    def failed(self, event: CommandFailedEvent) -> None: ...


def observed_provider(store: Store, sent: Commands, **options: Any) -> LockProvider:
    options |= {"event_listeners": [sent]}
    if not store.is_async:
        client = store.stack.enter_context(MongoClient[Any](store.url(), **options))
        return MongoLockProvider(client[DATABASE], collection=store.collection)
    async_client = AsyncMongoClient[Any](store.url(), **options)
    provider = store.blocking(lambda: AsyncMongoLockProvider(async_client[DATABASE], collection=store.collection))
    store.stack.callback(lambda: provider.run(async_client.close()))
    return provider


@both_clients_in_full
@pytest.mark.parametrize("options", [HOSTILE, {"w": 1, "journal": False}, {"timeoutMS": 20_000}])
def test_commands_ask_for_a_majority_the_primary_and_names_byte_by_byte(
    store: Store, options: dict[str, Any], name: str
) -> None:
    sent = Commands()
    provider = observed_provider(store, sent, **options)
    lease = acquired(provider, name)
    assert provider.extend(lease, "2m")
    record = record_of(provider, name)
    assert record.lock_until.utcoffset() is not None
    assert provider.records(name) == [record]
    assert provider.release(lease)
    provider.take_over(LockRequest(name, "1m"))
    assert provider.force_release(name)
    assert provider.prune(0) == 1
    assert {next(iter(command)) for command in sent.commands} == {"findAndModify", "update", "aggregate", "delete"}
    for command in sent.commands:
        # PyMongo sends "primaryPreferred" instead of "primary" to a server outside a replica set.
        assert command.get("$readPreference", {"mode": "primary"})["mode"] in ("primary", "primaryPreferred")
        if "aggregate" in command:
            assert command["readConcern"] == {"level": "majority"}
        else:
            assert command["writeConcern"]["w"] == "majority"
            assert ("wtimeout" in command["writeConcern"]) is ("timeoutMS" not in options)
        statement = (command.get("updates") or command.get("deletes") or [command])[0]
        if "delete" not in command:
            assert statement["collation"]["locale"] == "simple"


def test_no_operation_is_in_a_session_or_under_a_time_limit_of_the_caller(store: Store, name: str) -> None:
    """PyMongo keeps both in context variables, for all commands in the same context."""
    client = store.stack.enter_context(MongoClient[Any](store.url()))
    own, users = store.provider(), MongoLockProvider(client[DATABASE], collection=store.collection)
    with client.start_session() as session, timeout(1e-9):
        bind = getattr(session, "bind", nullcontext)  # since PyMongo 4.17
        with bind():
            for provider in (own, users):
                assert provider.release(acquired(provider, name))
