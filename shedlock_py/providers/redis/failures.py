"""What an error of redis-py means."""

from __future__ import annotations

import enum
import re

from redis import exceptions as redis_errors
from redis.exceptions import RedisClusterException, RedisError


class Failure(enum.Enum):
    """Each asks for another answer."""

    NO_SCRIPT = "the server does not have the script (any more); nothing was done"
    NOT_CONNECTED = "no connection could be had for this try"
    GONE = "the connection broke; whether the script ran is unknown"
    UNREACHABLE = "no answer, or none that would be different from another replica's"
    REFUSED = "the server answered with an error"
    FOREIGN = "not from Redis at all, such as an exception raised by a signal handler"


# Redis gives a code in front of the message; from inside a script, older versions put it further back, with a dash.
_CODE = re.compile(r"(?:^|-)([A-Z]{3,})\b")
_UNREACHABLE_CODES = {
    "READONLY",  # a replica
    "OOM",
    "MISCONF",  # cannot write its snapshot, so takes no writes
    "NOREPLICAS",  # min-replicas-to-write
    "LOADING",
    "BUSY",  # in a script that does not end
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
}


def classify(error: Exception) -> Failure:
    """What ``error`` means for the script that met it."""
    if isinstance(error, redis_errors.NoScriptError):
        return Failure.NO_SCRIPT
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
        return Failure.REFUSED
    if isinstance(error, redis_errors.BusyLoadingError):
        return Failure.UNREACHABLE
    if isinstance(error, redis_errors.ConnectionError):
        if "No connection available" in str(error) or "Too many connections" in str(error):
            return Failure.NOT_CONNECTED  # redis-py's own pool
        return Failure.NOT_CONNECTED if "connecting to" in str(error) else Failure.GONE
    if isinstance(error, redis_errors.TimeoutError):
        return Failure.NOT_CONNECTED if "connecting to" in str(error) else Failure.UNREACHABLE
    if isinstance(error, redis_errors.ResponseError):
        codes = set(_CODE.findall(str(error)))
        is_unreachable = codes & _UNREACHABLE_CODES or isinstance(error, _UNREACHABLE_ANSWERS)
        return Failure.UNREACHABLE if is_unreachable else Failure.REFUSED
    if isinstance(error, RedisClusterException | redis_errors.ClusterError):
        return Failure.UNREACHABLE  # no node for the slot, or none at all
    if isinstance(error, OSError):  # with TimeoutError
        return Failure.GONE
    if isinstance(error, RedisError | RuntimeError | UnicodeError):
        return Failure.REFUSED  # RuntimeError: a client of asyncio used on another event loop
    return Failure.FOREIGN


# redis-py takes their code off the message.
_UNREACHABLE_ANSWERS = (
    redis_errors.ReadOnlyError,
    redis_errors.OutOfMemoryError,
    redis_errors.ClusterDownError,
    redis_errors.TryAgainError,
)


def reason(error: BaseException) -> str:
    """The driver's own words, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"
