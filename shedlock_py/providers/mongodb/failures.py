"""What an error of PyMongo means."""

from __future__ import annotations

import enum

from bson.errors import BSONError
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    ConnectionFailure,
    ExecutionTimeout,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
)


class Failure(enum.Enum):
    """Each asks for another answer."""

    CONFLICT = "undone by the server because of a concurrent write; asking again is safe and may work"
    DUPLICATE = "somebody else made the record at the same moment; asking again finds it"
    GONE = "the connection broke, or the server is no primary any more; whether the command was done is unknown"
    NOT_SENT = "no connection could be had, so nothing was asked"
    UNREACHABLE = "no answer, or none that would be different from another replica's"
    NO_RECORD = "the document is there, but is no lock record"
    INDEX_EXISTS = "there is another index on the field"
    REFUSED = "the server answered with an error"
    FOREIGN = "not from the store at all, such as an exception raised by a signal handler"


# https://www.mongodb.com/docs/manual/reference/error-codes/ — PyMongo has classes of its own for "not primary" and
# "shutting down".
_BY_CODE = {
    11000: Failure.DUPLICATE,
    112: Failure.CONFLICT,
    **dict.fromkeys((85, 86), Failure.INDEX_EXISTS),
    # An operator met a value of the wrong type: $add (16554 before MongoDB 6.1), $toLong.
    **dict.fromkeys((14, 241, 16554), Failure.NO_RECORD),
    **dict.fromkeys((6, 7, 89, 9001), Failure.UNREACHABLE),  # mongos has lost its connection to a shard
    **dict.fromkeys((24, 50, 202, 262), Failure.UNREACHABLE),  # timeouts
    **dict.fromkeys((133, 134, 11601), Failure.UNREACHABLE),  # no primary, nothing committed yet, killed
    **dict.fromkeys((371, 14031), Failure.UNREACHABLE),  # writes are blocked, the disk is full
    462: Failure.UNREACHABLE,  # overloaded
}


def classify(error: Exception) -> Failure:
    """What ``error`` means for the command that met it."""
    match error:
        case ServerSelectionTimeoutError() | WaitQueueTimeoutError():
            return Failure.NOT_SENT
        case NetworkTimeout() | ExecutionTimeout() | WriteConcernError():
            # A write that no majority has confirmed is in doubt: after a fail-over it may never have been.
            return Failure.UNREACHABLE
        case AutoReconnect() | OSError():
            return Failure.GONE
        case ConnectionFailure():
            return Failure.UNREACHABLE
        case OperationFailure():
            return _BY_CODE.get(error.code or 0, Failure.REFUSED)
        case ConfigurationError() if type(error.__cause__).__module__.startswith("dns."):
            return Failure.NOT_SENT  # mongodb+srv:// is looked up when it is first used
        case PyMongoError() | BSONError() | RuntimeError():
            # RuntimeError: an async client used from another event loop.
            return Failure.REFUSED
    return Failure.FOREIGN


def reason(error: BaseException) -> str:
    """The driver's own words, on one line, without the dumps that it appends."""
    text = " ".join(str(error).split())
    for dump in (", full error:", ", Topology Description:", " Topology Description:"):
        text = text.partition(dump)[0]
    text = text or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"
