"""How programs interpret errors and replies. Without a server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    ConnectionFailure,
    DuplicateKeyError,
    ExecutionTimeout,
    InvalidOperation,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
    WTimeoutError,
)

from shedlock_py import LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.kit import MOST_RETRIES, Failure, TimedOut, Undo, locking
from shedlock_py.providers.kit.operation import reason
from shedlock_py.providers.mongodb.commands import Command, undo
from shedlock_py.providers.mongodb.errors import classify, time_limit
from shedlock_py.providers.mongodb.mongo_programs import MongoPrograms
from shedlock_py.runtime.program import drive

REQUEST = LockRequest("job", "1m", holder="me")


def dns_error() -> ConfigurationError:
    error = ConfigurationError("no reply from the name server")
    error.__cause__ = type("Timeout", (Exception,), {"__module__": "dns.resolver"})()
    return error


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (AutoReconnect("connection closed"), Failure.CONNECTION_LOST),
        (NotPrimaryError("not primary"), Failure.CONNECTION_LOST),
        (ConnectionResetError(), Failure.CONNECTION_LOST),
        (TimeoutError(), Failure.CONNECTION_LOST),
        (WTimeoutError("waiting for replication timed out", 64), Failure.UNREACHABLE),
        (WriteConcernError("not enough data-bearing nodes", 100), Failure.UNREACHABLE),
        (ConnectionFailure("cannot"), Failure.UNREACHABLE),
        (dns_error(), Failure.NOT_DONE),
        (ConfigurationError("no such mechanism"), Failure.REFUSED),
        (InvalidOperation("Cannot use MongoClient after close"), Failure.REFUSED),
        (OperationFailure("Authentication failed.", 18), Failure.REFUSED),
        (OperationFailure("no code"), Failure.REFUSED),
        (OperationFailure("killed", 11601), Failure.UNREACHABLE),
        (DuplicateKeyError("E11000", 11000), Failure.CONFLICT),
        (RuntimeError("another event loop"), Failure.REFUSED),
        (KeyError("from a signal handler"), Failure.NOT_A_STORE_ERROR),
    ],
)
def test_each_error_of_the_driver_is_the_right_kind_of_failure(error: Exception, failure: Failure) -> None:
    assert classify(error) is failure


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OperationFailure("too\nbad, hunter2", 1, {"ok": 0}), "too bad, ***"),
        (ServerSelectionTimeoutError("refused, Timeout: 2.0s, Topology Description: <T>"), "refused, Timeout: 2.0s"),
        (AutoReconnect(), "AutoReconnect"),
        (AutoReconnect("x" * 1000), "x" * 300 + "…"),
        (AutoReconnect("x" * 297 + "hunter2"), "x" * 297 + "***"),
    ],
)
def test_reason_is_one_short_line_without_the_password(error: Exception, text: str) -> None:
    assert reason(programs("hunter", "hunter2"), error) == text


@pytest.mark.parametrize(
    ("error", "waiting_for", "sent"),
    [
        (NetworkTimeout("timed out"), "a reply", True),
        (ExecutionTimeout("too slow", 50), "a reply", True),
        (ServerSelectionTimeoutError("none"), "a server that takes writes", False),
        (WaitQueueTimeoutError("pool"), "a free connection", False),
    ],
)
def test_i13_time_limits_of_the_driver(error: Exception, waiting_for: str, sent: bool) -> None:
    with pytest.raises(TimedOut) as caught, time_limit(1):
        raise error
    assert (caught.value.waiting_for, caught.value.sent, caught.value.__cause__) == (waiting_for, sent, error)
    with pytest.raises(ProviderUnreachable, match=f"waited for {waiting_for} .{error}") as unreachable:
        drive(locking.acquire(programs(), REQUEST), Server(lambda _: caught.value).execute)
    assert unreachable.value.__cause__ is error


def programs(*passwords: str) -> MongoPrograms:
    return MongoPrograms("shedlock.shedlock", "30d", passwords, timeout=5, fire_time_tolerance=timedelta(minutes=5))


class Server:
    """Send a test's replies to a program's commands, and record the commands."""

    def __init__(self, reply: Callable[[Command], Any]) -> None:
        self._reply = reply
        self.requests: list[Command] = []

    def execute(self, command: Command | Undo) -> Any:
        if isinstance(command, Undo):
            return drive(command.program, self.execute)
        self.requests.append(command)
        reply = self._reply(command)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def methods(self) -> str:
        return " ".join(command.method for command in self.requests)


def grant(command: Command) -> Any:
    claim = command.arguments["update"][0]["$replaceWith"]["$cond"][1]["$mergeObjects"][1]
    now = datetime.now(UTC)
    return {"lockedBy": claim["lockedBy"]["$literal"], "fencingToken": 5000, "lockedAt": now, "lockUntil": now}


def test_i7_the_token_is_the_one_of_the_record() -> None:
    server = Server(grant)
    lease = drive(locking.acquire(programs(), REQUEST), server.execute)
    assert lease
    assert lease.fencing_token == 5000
    assert server.methods() == "find_one_and_update"


@pytest.mark.parametrize(
    ("error", "requests"),
    [
        (OperationFailure("Authentication failed.", 18), "find_one_and_update"),
        (TimedOut("a free connection", sent=False), "find_one_and_update"),
        (TimedOut("a reply", sent=True), "find_one_and_update update_one"),
        (WTimeoutError("late", 64), "find_one_and_update update_one"),
        (AutoReconnect("closed"), "find_one_and_update find_one_and_update update_one update_one"),
        (DuplicateKeyError("E11000", 11000), " ".join(["find_one_and_update"] * (MOST_RETRIES + 1))),
        (KeyError("from a signal handler"), "find_one_and_update update_one"),
    ],
)
def test_i12_what_is_retried_and_what_is_undone(error: Exception, requests: str) -> None:
    server = Server(lambda _: error)

    def execute(command: Command | Undo) -> Any:
        try:
            return server.execute(command)
        except Exception:
            if not isinstance(command, Undo):
                raise  # the provider ignores an undo that fails

    with pytest.raises(KeyError if isinstance(error, KeyError) else ProviderError):
        drive(locking.acquire(programs(), REQUEST), execute)
    assert server.methods() == requests
    if "update_one" in requests.split():
        claim = server.requests[0]
        changes = claim.arguments["update"][0]["$replaceWith"]["$cond"][1]["$mergeObjects"][1]
        assert server.requests[-1] == undo(REQUEST.name, changes["lockedBy"]["$literal"], None)


def test_i12_a_grant_in_a_document_that_is_no_lock_record_is_undone() -> None:
    """The caller gets an error, so nobody would free the lock."""
    server = Server(lambda command: grant(command) | {"lastFireTime": 2**62})
    methods = []

    def execute(command: Command | Undo) -> Any:
        if isinstance(command, Undo):
            methods.append(next(command.program).method)
            return None
        return server.execute(command)

    with pytest.raises(ProviderError, match=r"its lastFireTime is"):
        drive(locking.acquire(programs(), REQUEST), execute)
    assert methods == ["update_one"]


def test_two_first_uses_at_once() -> None:
    met = [DuplicateKeyError("E11000", 11000)] * 3
    server = Server(lambda command: met.pop() if met else grant(command))
    assert drive(locking.acquire(programs(), REQUEST), server.execute)


def test_a_collection_that_takes_two_names_for_the_same() -> None:
    """MongoDB does so each time: the record can neither be found nor made."""
    server = Server(lambda _: DuplicateKeyError("E11000 duplicate key error", 11000))
    with pytest.raises(ProviderError, match=r"shedlock\.shedlock treats two different lock names as equal") as error:
        drive(locking.acquire(programs(), REQUEST), server.execute)
    assert not isinstance(error.value, ProviderUnreachable)
