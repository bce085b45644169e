"""What errors and replies mean to the programs. No server is asked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
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
from shedlock_py._program import run
from shedlock_py.providers.mongodb import commands
from shedlock_py.providers.mongodb.algorithm import MOST_TRIES, MongoAlgorithm
from shedlock_py.providers.mongodb.commands import Answer, Command, FindOneAndUpdate, Pause, UpdateOne
from shedlock_py.providers.mongodb.failures import Failure, classify, reason

REQUEST = LockRequest("job", "1m", holder="me")


def dns_error() -> ConfigurationError:
    error = ConfigurationError("no answer from the name server")
    error.__cause__ = type("Timeout", (Exception,), {"__module__": "dns.resolver"})()
    return error


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (AutoReconnect("connection closed"), Failure.GONE),
        (NotPrimaryError("not primary"), Failure.GONE),
        (ConnectionResetError(), Failure.GONE),
        (TimeoutError(), Failure.GONE),
        (NetworkTimeout("timed out"), Failure.UNREACHABLE),
        (ExecutionTimeout("too slow", 50), Failure.UNREACHABLE),
        (WTimeoutError("waiting for replication timed out", 64), Failure.UNREACHABLE),
        (WriteConcernError("not enough data-bearing nodes", 100), Failure.UNREACHABLE),
        (ConnectionFailure("cannot"), Failure.UNREACHABLE),
        (ServerSelectionTimeoutError("none"), Failure.NOT_SENT),
        (WaitQueueTimeoutError("pool"), Failure.NOT_SENT),
        (dns_error(), Failure.NOT_SENT),
        (ConfigurationError("no such mechanism"), Failure.REFUSED),
        (InvalidOperation("Cannot use MongoClient after close"), Failure.REFUSED),
        (OperationFailure("Authentication failed.", 18), Failure.REFUSED),
        (OperationFailure("no code"), Failure.REFUSED),
        (OperationFailure("killed", 11601), Failure.UNREACHABLE),
        (DuplicateKeyError("E11000", 11000), Failure.DUPLICATE),
        (RuntimeError("another event loop"), Failure.REFUSED),
        (KeyError("from a signal handler"), Failure.FOREIGN),
    ],
)
def test_classify(error: Exception, failure: Failure) -> None:
    assert classify(error) is failure


def test_reason_is_one_short_line() -> None:
    assert reason(OperationFailure("too\nbad", 1, {"ok": 0})) == "too bad"
    assert reason(ServerSelectionTimeoutError("refused, Timeout: 2.0s, Topology Description: <T>")).endswith("2.0s")
    assert reason(AutoReconnect()) == "AutoReconnect"
    assert len(reason(AutoReconnect("x" * 1000))) == 301


class Server:
    """Replies to the commands of a program as the test says, and remembers them."""

    def __init__(self, reply: Callable[[Command], Any]) -> None:
        self._reply = reply
        self.asked: list[Command] = []
        self.algorithm = MongoAlgorithm("shedlock.shedlock", "30d", lambda: 0.0, str)

    def execute(self, command: Command) -> Answer:
        self.asked.append(command)
        reply = self._reply(command)
        if isinstance(reply, Exception):
            raise reply
        return Answer() if reply is None else Answer(documents=[reply])

    def kinds(self) -> str:
        return " ".join(type(command).__name__ for command in self.asked)


def reply_with(*tokens: int | None) -> Callable[[Command], Any]:
    """Grant everything, with these tokens one after the other; None: the claim is not ours any more."""
    left = list(tokens)
    claimed_by: list[str] = []

    def reply(command: Command) -> Any:
        if not isinstance(command, FindOneAndUpdate):
            return None
        if command.upsert:
            claim = command.update[0]["$replaceWith"]["$cond"][1]["$mergeObjects"][1]
            claimed_by.append(claim["lockedBy"]["$literal"])
        token = left.pop(0)
        return None if token is None else {"lockedBy": claimed_by[-1], "fencingToken": token}

    return reply


def test_i7_a_token_at_the_beginning_of_a_millisecond_is_final() -> None:
    server = Server(reply_with(5000))
    lease = run(server.algorithm.acquire(REQUEST), server.execute)
    assert lease
    assert lease.fencing_token == 5000
    assert server.kinds() == "FindOneAndUpdate"


def test_i7_another_token_is_replaced_in_a_later_millisecond() -> None:
    for operation in ("acquire", "take_over"):
        server = Server(reply_with(5001, 7000))
        lease = run(getattr(server.algorithm, operation)(REQUEST), server.execute)
        assert lease.fencing_token == 7000
        assert server.kinds() == "FindOneAndUpdate Pause FindOneAndUpdate"
        pause = server.asked[1]
        assert isinstance(pause, Pause)
        assert pause.seconds > 0.001


def test_a_claim_that_is_lost_meanwhile() -> None:
    server = Server(reply_with(5001, None, 9000))
    lease = run(server.algorithm.acquire(REQUEST), server.execute)
    assert lease is not None  # the record was deleted by hand, and the lock is free
    assert lease.fencing_token == 9000
    server = Server(reply_with(5001, None))
    assert run(server.algorithm.take_over(REQUEST), server.execute).fencing_token == 5001


def test_a_reply_without_a_record_is_asked_for_again() -> None:
    server = Server(reply_with(None, None, 5000))
    assert run(server.algorithm.acquire(REQUEST), server.execute)
    server = Server(lambda _: None)
    with pytest.raises(ProviderError, match="does not reply"):
        run(server.algorithm.acquire(REQUEST), server.execute)


@pytest.mark.parametrize("step", [Pause, FindOneAndUpdate])
@pytest.mark.parametrize("error", [KeyError("signal"), NetworkTimeout("late"), OperationFailure("unauthorized", 13)])
def test_i12_a_claim_whose_second_half_fails_is_undone(step: type[Command], error: Exception) -> None:
    granted = reply_with(5001)

    def reply(command: Command) -> Any:
        is_first = isinstance(command, FindOneAndUpdate) and command.upsert
        return error if isinstance(command, step) and not is_first else granted(command)

    server = Server(reply)
    with pytest.raises(KeyError if isinstance(error, KeyError) else ProviderError):
        run(server.algorithm.acquire(REQUEST), server.execute)
    undo = server.asked[-1]
    assert isinstance(undo, UpdateOne)
    assert undo == commands.release(REQUEST.name, undo.filter["lockedBy"], timedelta(0))


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (OperationFailure("Authentication failed.", 18), "FindOneAndUpdate"),
        (ServerSelectionTimeoutError("none"), "FindOneAndUpdate"),
        (NetworkTimeout("late"), "FindOneAndUpdate UpdateOne"),
        (WTimeoutError("late", 64), "FindOneAndUpdate UpdateOne"),
        (AutoReconnect("closed"), "FindOneAndUpdate FindOneAndUpdate UpdateOne"),
        (DuplicateKeyError("E11000", 11000), " ".join(["FindOneAndUpdate"] * MOST_TRIES)),
    ],
)
def test_what_is_asked_again_and_what_is_undone(error: Exception, asked: str) -> None:
    server = Server(lambda _: error)
    with pytest.raises(ProviderError):
        run(server.algorithm.acquire(REQUEST), server.execute)
    assert server.kinds() == asked


def test_two_first_uses_at_once() -> None:
    granted, met = reply_with(5000), [DuplicateKeyError("E11000", 11000)] * 3
    server = Server(lambda command: met.pop() if met else granted(command))
    assert run(server.algorithm.acquire(REQUEST), server.execute)


def test_a_collection_that_takes_two_names_for_the_same() -> None:
    """MongoDB says so each time: the record cannot be found, nor made."""
    server = Server(lambda _: DuplicateKeyError("E11000 duplicate key error", 11000))
    with pytest.raises(ProviderError, match=r"shedlock\.shedlock takes another name for the same") as error:
        run(server.algorithm.acquire(REQUEST), server.execute)
    assert not isinstance(error.value, ProviderUnreachable)


def test_the_driver_is_told_to_forget_a_password() -> None:
    algorithm = MongoAlgorithm("a.b", "30d", lambda: 0.0, lambda text: text.replace("hunter2", "***"))
    with pytest.raises(ProviderError) as error:
        run(algorithm.prune(timedelta(0)), Server(lambda _: OperationFailure("no hunter2", 1)).execute)
    assert str(error.value) == "prune: no ***"
