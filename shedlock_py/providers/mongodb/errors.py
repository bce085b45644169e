"""The meaning of errors from PyMongo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pymongo
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

from shedlock_py.providers.kit import Failure, TimedOut

# https://www.mongodb.com/docs/manual/reference/error-codes/ — PyMongo has its own classes for "not primary" and
# "shutting down".
_BY_CODE = {
    11000: Failure.CONFLICT,  # another claim created the record at the same moment; a retry finds it
    112: Failure.CONFLICT,
    **dict.fromkeys((6, 7, 89, 9001), Failure.UNREACHABLE),  # mongos has lost its connection to a shard
    **dict.fromkeys((24, 50, 202, 262), Failure.UNREACHABLE),  # timeouts
    **dict.fromkeys((133, 134, 11601), Failure.UNREACHABLE),  # no primary, no commit yet, killed
    **dict.fromkeys((371, 14031), Failure.UNREACHABLE),  # writes are blocked, the disk is full
    462: Failure.UNREACHABLE,  # overloaded
}
OTHER_TYPE = (14, 241, 16554)  # a value of a wrong type in $add (16554 before MongoDB 6.1) or $toLong

TOO_LATE = "shedlock_py: fire time too late"
"""The server cannot convert this text to a number, so it refuses the whole command with this text."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Limit the time of the commands in the block with PyMongo. If None, the client's settings count."""
    try:
        with pymongo.timeout(seconds):
            yield
    except WaitQueueTimeoutError as error:
        raise TimedOut("a free connection", sent=False) from error
    except ServerSelectionTimeoutError as error:
        raise TimedOut("a server that takes writes", sent=False) from error
    except (NetworkTimeout, ExecutionTimeout) as error:
        raise TimedOut("a reply", sent=True) from error


def classify(error: Exception) -> Failure:
    """Return the meaning of ``error`` for its command."""
    match error:
        case WriteConcernError():
            # A write that no majority has confirmed is in doubt: a failover may undo it.
            return Failure.UNREACHABLE
        case AutoReconnect() | OSError():
            return Failure.CONNECTION_LOST
        case ConnectionFailure():
            return Failure.UNREACHABLE
        case OperationFailure():
            return _BY_CODE.get(error.code or 0, Failure.REFUSED)
        case ConfigurationError() if type(error.__cause__).__module__.startswith("dns."):
            return Failure.NOT_DONE  # PyMongo resolves mongodb+srv:// at first use
        case PyMongoError() | BSONError() | RuntimeError():
            # RuntimeError: an async client in another event loop.
            return Failure.REFUSED
    return Failure.NOT_A_STORE_ERROR


def code_of(error: object) -> int:
    """Return the code of the server's error, or 0 for other errors."""
    return (error.code or 0) if isinstance(error, OperationFailure) else 0


def is_fire_time_too_late(error: object) -> bool:
    """Return whether the server refused the fire time of a claim: see :data:`TOO_LATE`."""
    return code_of(error) == 241 and TOO_LATE in str(error)
